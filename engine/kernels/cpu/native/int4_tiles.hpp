// Products of many rows with weights of 4 bits by the processor's tile registers (AMX).
#pragma once

#include "int4.hpp"

#ifdef PD_TILES

#include <sys/syscall.h>
#include <unistd.h>

namespace pd {

constexpr long TILE_ROWS = 16, TILE_BYTES = 64, TILE_PLACES = 2 * TILE_ROWS;

// Whether Linux lets this process use tile registers, which it has to be asked.
inline bool may_use_tiles() {
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    static const bool may = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return may;
}

// Six tile registers while this exists: 0 .. 3 for sums and 4 for inputs, of `rows` rows, and 5
// for weights. What was configured before is configured again afterwards.
class Tiles {
    struct alignas(TILE_BYTES) Config {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
    } before;

   public:
    explicit Tiles(long rows) {
        _tile_storeconfig(&before);
        Config ours;
        for (int one = 0; one < 6; ++one) {
            ours.bytes[one] = TILE_BYTES;
            ours.rows[one] = (uint8_t)(one == 5 ? TILE_ROWS : rows);
        }
        _tile_loadconfig(&ours);
    }
    ~Tiles() { _tile_loadconfig(&before); }
    Tiles(const Tiles&) = delete;
};

// A group of a block's inputs in bfloat16, as tiles.
struct alignas(TILE_BYTES) UnpackedGroup {
    Words words[Int4Weight::MOST_GROUP / TILE_PLACES][Int4Weight::VECTORS][TILE_ROWS];

    // Unpacks the tiles of one part, and returns where the next one begins.
    const uint16_t* fill(long part, const uint16_t* packed, const Int4Table& table) {
        for (long step = 0; step < TILE_ROWS; ++step, packed += Int4Weight::STEP_WORDS) {
            const Shorts some = load<Shorts>(packed);
            __builtin_prefetch(packed + Int4Weight::AHEAD);
            for (int v = 0; v < Int4Weight::VECTORS; ++v)
                words[part][v][step] = table.look_up(some >> 4 * v);
        }
        return packed;
    }
};

// What a group of a block is multiplied with: `packed` is unpacked on the way, if it is not null,
// so that memory is read while tiles are multiplied.
struct TileProduct {
    const Int4Weight& weight;
    const Int4Rows& rows;
    const Int4Table& table;
    UnpackedGroup& right;
    long group;

    // The sums of as many rows as a tile has, from `row` on.
    void multiply(long row, const uint16_t* packed,
                  float (&sums)[Int4Weight::VECTORS][TILE_ROWS][LANES]) const {
        const uint16_t* left = rows.items.data() + row * weight.depth + group * weight.group;
        const long stride = weight.depth * sizeof *left;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long part = 0; part < weight.group / TILE_PLACES; ++part, left += TILE_PLACES) {
            if (packed) packed = right.fill(part, packed, table);
            _tile_loadd(4, left, stride);
            _tile_loadd(5, right.words[part][0], TILE_BYTES);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(5, right.words[part][1], TILE_BYTES);
            _tile_dpbf16ps(1, 4, 5);
            _tile_loadd(5, right.words[part][2], TILE_BYTES);
            _tile_dpbf16ps(2, 4, 5);
            _tile_loadd(5, right.words[part][3], TILE_BYTES);
            _tile_dpbf16ps(3, 4, 5);
        }
        _tile_stored(0, sums[0], TILE_BYTES);
        _tile_stored(1, sums[1], TILE_BYTES);
        _tile_stored(2, sums[2], TILE_BYTES);
        _tile_stored(3, sums[3], TILE_BYTES);
    }
};

// A block of outputs of all rows, which are a multiple of `each`: the rows of a tile.
inline void multiply_by_tiles(const Int4Weight& weight, const Int4Rows& rows, long all,
                              long each, long block, const Int4Table& table, float* sums) {
    static thread_local UnpackedGroup unpacked;
    alignas(TILE_BYTES) float made[Int4Weight::VECTORS][TILE_ROWS][LANES];
    for (long group = 0; group < weight.groups(); ++group) {
        const Int4Scales scales(weight, block, group);
        const TileProduct product{weight, rows, table, unpacked, group};
        for (long first = 0; first < all; first += each) {
            product.multiply(first, first ? nullptr : weight.words(block, group * weight.group),
                             made);
            for (long r = 0; r < each; ++r) {
                const float total = rows.totals[(first + r) * weight.groups() + group];
                for (int v = 0; v < Int4Weight::VECTORS; ++v)
                    scales.add(v, load<Floats>(made[v][r]), total,
                               sums + (first + r) * Int4Weight::BLOCK);
            }
        }
    }
}

}  // namespace pd

#endif
