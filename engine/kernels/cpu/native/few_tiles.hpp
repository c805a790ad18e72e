// Tiles of keys and values for a few queries: found by the block table, and as bfloat16.
#pragma once

#include "fetching.hpp"
#include "fp8.hpp"

#ifdef PD_PAIRS

namespace pd {

// KV that is Kept in fp8 is copied, a tile at a time, into `copies` [parts][runs][heads][RUN]
// [width], in the cache nearest to the processor.
template <class Kept>
struct FewTiles {
    typedef typename Kept::Item Item;
    static constexpr bool COPIED = !std::is_same_v<Kept, BFloat16>;
    static constexpr long RUNS = FewTile<Item>::RUNS;

    const Plan& plan;
    const Call& call;
    uint16_t* const copies;

    // Numbers of the copies.
    static long copied(const Plan& plan, long heads) {
        return COPIED ? 2 * heads * FewTile<Item>::KEYS * plan.width : 0;
    }

    // The runs of a tile; behind the last, the first is repeated.
    FewTile<Item> locate(const Group& group, long key, long to) const {
        FewTile<Item> tile;
        tile.head_stride = plan.block_size * plan.width, tile.value_offset = plan.value_offset;
        const Item* memory =
            (const Item*)plan.memory + call.layer_offset + group.head * tile.head_stride;
        const int64_t* table = plan.tables + plan.spans[group.span].table;
        for (long i = 0; i < RUNS; ++i, key += RUN) {
            const long block = key / plan.block_size, token = key % plan.block_size;
            tile.runs[i] = key < to ? memory + table[block] * plan.block_stride + token * plan.width
                                    : tile.runs[0];
        }
        return tile;
    }

    // A tile as it lies, or a copy.
    FewTile<uint16_t> as_bfloat16(const FewTile<Item>& tile, long heads) const {
        if constexpr (!COPIED) {
            return tile;
        } else {
            const long stretch = RUN * plan.width;
            FewTile<uint16_t> copy;
            copy.head_stride = stretch, copy.value_offset = RUNS * heads * stretch;
            for (long run = 0; run < RUNS; ++run) {
                uint16_t* const at = copies + run * heads * stretch;
                copy.runs[run] = at;
                for (long part = 0; part < 2; ++part)
                    for (long head = 0; head < heads; ++head)
                        widen<BFloat16>(
                            tile.runs[run] + part * tile.value_offset + head * tile.head_stride,
                            at + part * copy.value_offset + head * stretch, stretch);
            }
            return copy;
        }
    }
};

}  // namespace pd

#endif
