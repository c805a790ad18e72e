// Products of many rows with weights of few bits by the processor's tile registers (AMX).
#pragma once

#include "few_bits.hpp"

#ifdef PD_TILES

#include <sys/syscall.h>
#include <unistd.h>

namespace pd {

constexpr long TILE_ROWS = 16, TILE_BYTES = 64, TILE_PLACES = FewBitsRows::PLACES;

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
    Words words[FewBitsWeight::MOST_GROUP / TILE_PLACES][VECTORS][TILE_ROWS];

    // Unpacks the tiles of one part, and returns where the next one begins.
    template <class Code>
    const uint16_t* fill(long part, const uint16_t* packed, const Code& code) {
        for (long step = 0; step < TILE_ROWS; ++step, packed += Code::STEP_WORDS) {
            Words made[VECTORS];
            code.unpack(packed, made);
            for (int v = 0; v < VECTORS; ++v) words[part][v][step] = made[v];
        }
        return packed;
    }
};

// What a group of a block is multiplied with: `packed` is unpacked on the way, if it is not null,
// so that memory is read while tiles are multiplied.
template <class Code>
struct TileProduct {
    const FewBitsWeight& weight;
    const FewBitsRows& rows;
    const Code& code;
    UnpackedGroup& right;
    long group;

    // The sums of as many rows as a tile has, from `row` on.
    void multiply(long row, const uint16_t* packed,
                  float (&sums)[VECTORS][TILE_ROWS][LANES]) const {
        const uint16_t* left = rows.items.data() + rows.at(row, group * weight.group);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (long part = 0; part < weight.group / TILE_PLACES; ++part) {
            if (packed) packed = right.fill(part, packed, code);
            _tile_loadd(4, left + part * rows.each * TILE_PLACES, TILE_BYTES);
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

// A block of outputs of all rows, which are whole tiles.
template <class Code>
void multiply_by_tiles(const FewBitsWeight& weight, const FewBitsRows& rows, long all,
                              long block, const Code& code, float* sums) {
    static thread_local UnpackedGroup unpacked;
    alignas(TILE_BYTES) float made[VECTORS][TILE_ROWS][LANES];
    for (long group = 0; group < weight.groups(); ++group) {
        const FewBitsScales scales(weight, block, group);
        const uint16_t* packed = weight.words<Code>(block, group * weight.group);
        const TileProduct<Code> product{weight, rows, code, unpacked, group};
        for (long first = 0; first < all; first += rows.each) {
            product.multiply(first, first ? nullptr : packed, made);
            for (long r = 0; r < rows.each; ++r) {
                const float total = rows.totals[(first + r) * weight.groups() + group];
                for (int v = 0; v < VECTORS; ++v)
                    scales.add(v, load<Floats>(made[v][r]), total,
                               sums + (first + r) * FewBitsWeight::BLOCK);
            }
        }
    }
}

}  // namespace pd

#endif
