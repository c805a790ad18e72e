// Weights of few bits, of which a group of inputs shares a scale and a shift for each output; and
// rows to multiply with them. Rows are not rounded: each is a sum of one to three rows of bfloat16,
// and the product of two numbers of bfloat16 is exact.
#pragma once

#include <algorithm>
#include <vector>

#include "codes.hpp"

namespace pd {

struct FewBitsWeight {
    const uint16_t* packed;  // see codes.hpp
    const float* scales;     // [outputs / 64][groups][64]
    const int8_t* shifts;    // the same: added to the numbers; null: nothing is
    const int32_t* order;    // [depth] the input at each place, -1: none; null: as they come
    const float* bias;       // [outputs], padded to whole blocks, or null
    int64_t outputs, inputs, depth, group, format, bits;

#ifdef PD_PAIRS
    static constexpr long BLOCK = OUTPUTS_OF_A_BLOCK, MOST_GROUP = 128;

    long blocks() const { return (outputs + BLOCK - 1) / BLOCK; }
    long groups() const { return depth / group; }
    template <class Code>
    const uint16_t* words(long block, long place) const {
        return packed + (block * depth + place) / 2 * Code::STEP_WORDS;
    }
    Floats shift(long at) const {
        typedef int8_t Bytes __attribute__((vector_size(LANES)));
        return shifts ? __builtin_convertvector(load<Bytes>(shifts + at), Floats) : Floats{};
    }
#endif
};

#ifdef PD_PAIRS

constexpr long MOST_PIECES = 3;

// Rows as the kernel reads them: each as `pieces` rows of bfloat16, of which `each` lie together,
// PLACES inputs at a time; and what each adds up to in each group.
struct FewBitsRows {
    static constexpr long PLACES = 32;

    std::vector<uint16_t> items;  // [rows * pieces / each][depth / PLACES][each][PLACES]
    std::vector<float> totals;    // [rows * pieces][groups]
    long each = 1, depth = 0;

    void resize(const FewBitsWeight& weight, long count, long together) {
        each = together;
        depth = weight.depth;
        items.resize(count * depth);
        totals.resize(count * weight.groups());
    }
    // Where among `items` a row has an input; those up to a multiple of PLACES follow it.
    long at(long row, long place) const {
        return row / each * each * depth + place / PLACES * each * PLACES + row % each * PLACES +
               place % PLACES;
    }
};

// What a block's outputs have for a group.
struct FewBitsScales {
    Floats scale[VECTORS], shift[VECTORS];

    FewBitsScales(const FewBitsWeight& weight, long block, long group) {
        const long at = (block * weight.groups() + group) * FewBitsWeight::BLOCK;
        for (int v = 0; v < VECTORS; ++v) {
            scale[v] = load<Floats>(weight.scales + at + v * LANES);
            shift[v] = weight.shift(at + v * LANES);
        }
    }
    // Adds a group's part of a row, whose inputs there add up to `total`, to its sums.
    void add(int vector, Floats part, float total, float* sums) const {
        float* target = sums + vector * LANES;
        part += shift[vector] * total;
        store(target, load<Floats>(target) + part * scale[vector]);
    }
};

// A row into pieces: the first is what bfloat16 has of it, the next what that has of the rest.
template <class Format>
inline void split(const FewBitsWeight& weight, const void* from, long row, long pieces,
                  FewBitsRows& rows) {
    typedef typename Format::Item Item;
    const Item* inputs = (const Item*)from + row * weight.inputs;
    static thread_local std::vector<Item> sorted;
    sorted.assign(weight.depth, Item{});
    if (weight.order) {
        for (long at = 0; at < weight.depth; ++at)
            if (weight.order[at] >= 0) sorted[at] = inputs[weight.order[at]];
    } else {
        std::copy(inputs, inputs + weight.inputs, sorted.begin());
    }
    float* totals = rows.totals.data() + row * pieces * weight.groups();
    for (long group = 0; group < weight.groups(); ++group) {
        Floats sums[MOST_PIECES] = {};
        for (long at = group * weight.group; at < (group + 1) * weight.group; at += LANES) {
            Floats rest = Format::read(sorted.data() + at);
            for (long piece = 0; piece < pieces; ++piece) {
                uint16_t* target = rows.items.data() + rows.at(row * pieces + piece, at);
                BFloat16::write(target, rest);
                Floats written = BFloat16::read(target);
                sums[piece] += written;
                rest -= written;
            }
        }
        for (long piece = 0; piece < pieces; ++piece)
            totals[piece * weight.groups() + group] = sum(sums[piece]);
    }
}

#endif

}  // namespace pd
