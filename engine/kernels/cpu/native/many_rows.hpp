// Where the keys and values of a tile lie for many queries, and in which format they are read.
#pragma once

#include <type_traits>
#include <vector>

#include "fp8.hpp"
#include "tasks.hpp"
#include "tile.hpp"

namespace pd {

constexpr long TILE = 128;

// Where the keys of a tile lie, and how many they are; values are at a fixed distance. Behind
// the last, the first is repeated: it weighs nothing, but it must be a number.
template <class Item>
struct Rows {
    const Item* keys[TILE];
    long count;
};

// KV that is Kept in another format than the queries' is copied in theirs, a tile at a time.
template <class Format, class Kept>
struct ManyRows {
    typedef typename Format::Item Item;
    typedef typename Kept::Item KeptItem;
    static constexpr bool COPIED = !std::is_same_v<Format, Kept>;

    const Plan& plan;
    const Call& call;

    // From a key to its value, in rows as they are computed with.
    long value_offset() const {
        return COPIED && plan.value_offset ? TILE * plan.width : plan.value_offset;
    }

    // Up to TILE keys from `key` on, block by block. They are far: fetch them soon, use them next.
    void find(const Group& group, long key, long to, Rows<KeptItem>& rows, Soon& soon) const {
        const long width = plan.width;
        const KeptItem* memory = (const KeptItem*)plan.memory + call.layer_offset +
                                 group.head * plan.block_size * width;
        const int64_t* table = plan.tables + plan.spans[group.span].table;
        long block = key / plan.block_size, token = key % plan.block_size;
        rows.count = std::min(TILE, to - key);
        for (long i = 0; i < rows.count; ++block, token = 0) {
            const KeptItem* at = memory + table[block] * plan.block_stride + token * width;
            long some = std::min(rows.count - i, (long)plan.block_size - token);
            want(at, some * width, soon);
            if (plan.value_offset) want(at + plan.value_offset, some * width, soon);
            for (long end = i + some; i < end; ++i, at += width) rows.keys[i] = at;
        }
        for (long i = rows.count; i < round_up(rows.count); ++i) rows.keys[i] = rows.keys[0];
    }

    // The rows as they lie, or copies: keys behind one another, and the values behind them.
    const Rows<Item>& as_computed(const Rows<KeptItem>& rows, Rows<Item>& copies) const {
        if constexpr (!COPIED) {
            return rows;
        } else {
            static thread_local std::vector<Item> room;
            const long width = plan.width, offset = value_offset();
            room.resize(2 * TILE * width);
            copies.count = rows.count;
            Item* to = room.data();
            for (long i = 0; i < round_up(rows.count); ++i, to += width) {
                copies.keys[i] = to;
                widen<Format>(rows.keys[i], to, width);
                if (offset) widen<Format>(rows.keys[i] + plan.value_offset, to + offset, width);
            }
            return copies;
        }
    }

   private:
    static void want(const KeptItem* from, long count, Soon& soon) {
        constexpr long LINE = 64 / sizeof(KeptItem);
        const void** lines = soon.end;
        const long some = (count + LINE - 1) / LINE;
        for (long line = 0; line < some; ++line) lines[line] = from + line * LINE;
        soon.end = lines + some;
    }
};

}  // namespace pd
