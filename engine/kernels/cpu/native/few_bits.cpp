// Products with weights of few bits (few_bits.hpp). Each byte of a weight is read once: few rows
// are multiplied in vector registers, more in tile registers where there are some.
#include <optional>

#include "again.hpp"
#include "few_bits.hpp"
#include "few_bits_tiles.hpp"
#include "tile.hpp"

namespace pd {
namespace {

#ifdef PD_PAIRS

constexpr long BLOCK = FewBitsWeight::BLOCK, MOST_ROWS = 6;
constexpr long WORTH_A_THREAD = 1 << 18, WORTH_TILES = 2;
// Rows at once: so few that they stay near, and so many that unpacking a weight is worth it.
constexpr long NEAR = 1 << 19, FEWEST_AT_ONCE = 48, MOST_AT_ONCE = 128;

// A group's part of ROWS rows by a block of outputs, added to sums [ROWS][64].
template <class Code, int ROWS>
void tile(const FewBitsWeight& weight, const FewBitsRows& rows, long row, long block, long group,
          const Code& code, float* sums) {
    const uint16_t* packed = weight.words<Code>(block, group * weight.group);
    const uint16_t* left = rows.items.data() + rows.at(row, group * weight.group);
    Floats part[ROWS][VECTORS] = {};
    for (long step = 0; step < weight.group; step += 2, packed += Code::STEP_WORDS) {
        Words right[VECTORS];
        code.unpack(packed, right);
        for (int r = 0; r < ROWS; ++r) {
            uint32_t pair;
            std::memcpy(&pair, left + r * weight.depth + step, sizeof pair);
            for (int v = 0; v < VECTORS; ++v)
                part[r][v] = Pairs::multiply_add(part[r][v], pair, (Floats)right[v]);
        }
    }
    const FewBitsScales scales(weight, block, group);
    for (int r = 0; r < ROWS; ++r) {
        const float total = rows.totals[(row + r) * weight.groups() + group];
        for (int v = 0; v < VECTORS; ++v)
            scales.add(v, part[r][v], total, sums + r * BLOCK);
    }
}

template <class Code>
void tile_rows(const FewBitsWeight& weight, const FewBitsRows& rows, long row, long count,
               long block, long group, const Code& code, float* sums) {
    switch (count) {
        case 1: return tile<Code, 1>(weight, rows, row, block, group, code, sums);
        case 2: return tile<Code, 2>(weight, rows, row, block, group, code, sums);
        case 3: return tile<Code, 3>(weight, rows, row, block, group, code, sums);
        case 4: return tile<Code, 4>(weight, rows, row, block, group, code, sums);
        case 5: return tile<Code, 5>(weight, rows, row, block, group, code, sums);
        case 6: return tile<Code, 6>(weight, rows, row, block, group, code, sums);
    }
}

template <class Code>
void multiply_by_vectors(const FewBitsWeight& weight, const FewBitsRows& rows, long all, long block,
                         const Code& code, float* sums) {
    const long tiles = (all + MOST_ROWS - 1) / MOST_ROWS;
    for (long group = 0; group < weight.groups(); ++group)
        for (long one = 0; one < tiles; ++one) {
            const long row = all * one / tiles, next = all * (one + 1) / tiles;
            tile_rows(weight, rows, row, next - row, block, group, code, sums + row * BLOCK);
        }
}

template <class Format>
void write_block(const FewBitsWeight& weight, const float* sums, void* to, long rows, long pieces,
                 long block) {
    const long first = block * BLOCK, count = std::min(weight.outputs - first, BLOCK);
    for (long row = 0; row < rows; ++row)
        for (long at = 0; at < count; at += LANES) {
            Floats value = weight.bias ? load<Floats>(weight.bias + first + at) : Floats{};
            for (long piece = pieces; piece--;)  // the smallest first
                value += load<Floats>(sums + (row * pieces + piece) * BLOCK + at);
            typename Format::Item* target =
                (typename Format::Item*)to + row * weight.outputs + first + at;
            if (count - at >= LANES)
                Format::write(target, value);
            else
                write_some<Format>(target, value, count - at);
        }
}

// How many rows a tile has, if there are so many that they are worth tiles; 0: none.
long rows_of_a_tile(long all) {
#ifdef PD_TILES
    if (all >= WORTH_TILES && may_use_tiles()) {
        const long tiles = (all + TILE_ROWS - 1) / TILE_ROWS;
        return (all + tiles - 1) / tiles;
    }
#endif
    return 0;
}

template <class Code, class Format>
void multiply(const FewBitsWeight& weight, const void* inputs, void* outputs, long rows,
              long pieces, long threads) {
    static thread_local FewBitsRows split_rows;
    FewBitsRows& ours = split_rows;
    const long all = rows * pieces, each = rows_of_a_tile(all);
    const long padded = each ? (all + each - 1) / each * each : all;
    ours.resize(weight, padded, std::max(1L, each));  // beyond `all` is what nobody looks at
    const Code code;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        static thread_local std::vector<float> sums;
#pragma omp for schedule(static)
        for (long row = 0; row < rows; ++row) split<Format>(weight, inputs, row, pieces, ours);
#ifdef PD_TILES
        std::optional<Tiles> tiles;
        if (each) tiles.emplace(each);
#endif
#pragma omp for schedule(static)
        for (long block = 0; block < weight.blocks(); ++block) {
            sums.assign(padded * BLOCK, 0.0f);
#ifdef PD_TILES
            if (each)
                multiply_by_tiles(weight, ours, padded, block, code, sums.data());
            else
#endif
                multiply_by_vectors(weight, ours, all, block, code, sums.data());
            write_block<Format>(weight, sums.data(), outputs, rows, pieces, block);
        }
    }
}

template <class Code, class Format>
void multiply_all(const FewBitsWeight& weight, const void* inputs, void* outputs, long rows,
                  long pieces, long threads) {
    typedef const typename Format::Item Input;
    typedef typename Format::Item Output;
    const long most = std::clamp(NEAR / weight.depth, FEWEST_AT_ONCE, MOST_AT_ONCE) / pieces;
    for (long row = 0; row < rows; row += most)
        multiply<Code, Format>(weight, (Input*)inputs + row * weight.inputs,
                         (Output*)outputs + row * weight.outputs,
                         std::min(most, rows - row), pieces, threads);
}

template <class Code>
void multiply_any(const FewBitsWeight& weight, const void* inputs, void* outputs, long rows,
                  long threads) {
    switch (weight.format) {
        case 0: return multiply_all<Code, Float32>(weight, inputs, outputs, rows, 3, threads);
        case 1: return multiply_all<Code, BFloat16>(weight, inputs, outputs, rows, 1, threads);
        case 2: return multiply_all<Code, Float16>(weight, inputs, outputs, rows, 2, threads);
    }
}

#endif

}  // namespace
}  // namespace pd

extern "C" void pd_multiply_few_bits(const pd::FewBitsWeight* weight, const void* inputs,
                                     void* outputs, int64_t rows, int64_t threads) {
#ifdef PD_PAIRS  // never called otherwise: see pd_pairs
    using namespace pd;
    const long useful = std::max(1L, weight->outputs * weight->inputs / WORTH_A_THREAD);
    threads = std::min<long>(threads, useful);
    if (weight->bits == 4) return multiply_any<FourBits>(*weight, inputs, outputs, rows, threads);
    return multiply_any<EightBits>(*weight, inputs, outputs, rows, threads);
#endif
}

PD_AGAIN(pd_multiply_few_bits)
