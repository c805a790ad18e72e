// Weights of 4 bits, whole numbers -8 .. 7, of which a group of inputs shares a scale and a shift
// for each output; and rows to multiply with them. Rows are not rounded: each is a sum of one to
// three rows of bfloat16, and bfloat16 times such a whole number is exact.
//
// A weight lies in steps of two inputs, [outputs / 64][depth / 2][32] words of 16 bits: word
// 2 i + h has, from its lowest bits on, outputs i, i + 16, i + 32 and i + 48 of input h. So one
// load and three shifts find four vectors of what Int4Table makes bfloat16.
#pragma once

#include <algorithm>
#include <vector>

#include "numbers.hpp"

namespace pd {

struct Int4Weight {
    static constexpr long BLOCK = 64, VECTORS = BLOCK / LANES, STEP_WORDS = 32, MOST_GROUP = 128;
    // Words that are fetched before they are read. Not in kibibytes: what is fetched would then lie
    // in the same places of pages as what was just written, which holds reads up.
    static constexpr long AHEAD = 40 * STEP_WORDS;

    const uint16_t* packed;
    const float* scales;   // [outputs / 64][groups][64]
    const int8_t* shifts;  // the same: added to the numbers; null: nothing is
    const int32_t* order;  // [depth] the input at each place, -1: none; null: as they come
    const float* bias;     // [outputs], padded to whole blocks, or null
    int64_t outputs, inputs, depth, group, format;

    long blocks() const { return (outputs + BLOCK - 1) / BLOCK; }
    long groups() const { return depth / group; }
    const uint16_t* words(long block, long place) const {
        return packed + (block * depth + place) / 2 * STEP_WORDS;
    }
    Floats shift(long at) const {
        typedef int8_t Bytes __attribute__((vector_size(LANES)));
        return shifts ? __builtin_convertvector(load<Bytes>(shifts + at), Floats) : Floats{};
    }
};

#ifdef PD_PAIRS

constexpr long MOST_PIECES = 3;

// Rows as the kernel reads them: `pieces` rows of bfloat16 each, and what each adds up to in
// each group.
struct Int4Rows {
    std::vector<uint16_t> items;  // [rows * pieces][depth]
    std::vector<float> totals;    // [rows * pieces][groups]

    void resize(const Int4Weight& weight, long count) {
        items.resize(count * weight.depth);
        totals.resize(count * weight.groups());
    }
};

struct Int4Table {
    Shorts numbers;
    Int4Table() {
        uint16_t made[Int4Weight::STEP_WORDS];
        for (long i = 0; i < Int4Weight::STEP_WORDS; ++i) {
            float value = (float)(i % 16 - 8);
            uint32_t bits;
            std::memcpy(&bits, &value, sizeof bits);
            made[i] = (uint16_t)(bits >> 16);
        }
        numbers = load<Shorts>(made);
    }
    // The numbers in the lowest four bits of each word; higher bits are ignored.
    Words look_up(Shorts of) const {
        return (Words)_mm512_permutexvar_epi16((__m512i)of, (__m512i)numbers);
    }
};

// What a block's outputs have for a group.
struct Int4Scales {
    Floats scale[Int4Weight::VECTORS], shift[Int4Weight::VECTORS];

    Int4Scales(const Int4Weight& weight, long block, long group) {
        const long at = (block * weight.groups() + group) * Int4Weight::BLOCK;
        for (int v = 0; v < Int4Weight::VECTORS; ++v) {
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
inline void split(const Int4Weight& weight, const void* from, long row, long pieces,
                  Int4Rows& rows) {
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
    uint16_t* items = rows.items.data() + row * pieces * weight.depth;
    float* totals = rows.totals.data() + row * pieces * weight.groups();
    for (long group = 0; group < weight.groups(); ++group) {
        Floats sums[MOST_PIECES] = {};
        for (long at = group * weight.group; at < (group + 1) * weight.group; at += LANES) {
            Floats rest = Format::read(sorted.data() + at);
            for (long piece = 0; piece < pieces; ++piece) {
                uint16_t* target = items + piece * weight.depth + at;
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
