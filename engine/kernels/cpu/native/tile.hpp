// The one inner loop of all products: a few rows by a few vectors of columns, in registers.
//
// The right side is packed in words of 32 bits, [steps][columns]: a word is one float, or a
// pair of bfloat16 that are neighbours along the inner dimension. The left side has its words
// along the inner dimension. So a step is a broadcast word times a vector of words.
#pragma once

#include "numbers.hpp"

namespace pd {

// How words are multiplied: one float at a time, or two bfloat16 with one rounding. `power` is
// e^(x / OCTAVE), as exact as what is multiplied.
struct Singles {
    static constexpr long UNIT = 1;
    static constexpr float OCTAVE = 1.0f;
    static Floats power(Floats x) { return exp(x); }
    static Floats multiply_add(Floats sum, uint32_t left, Floats right) {
        return sum + (Floats)(Words{} + left) * right;
    }
};

#ifdef PD_PAIRS
struct Pairs {
    static constexpr long UNIT = 2;
    static constexpr float OCTAVE = LOG2_E;
    static Floats power(Floats x) { return exp2_short(x); }
    static Floats multiply_add(Floats sum, uint32_t left, Floats right) {
        return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)left),
                                        (__m512bh)right);
    }
};
#else
typedef Singles Pairs;
#endif

constexpr long MOST_ROWS = 6, MOST_VECTORS = 4;

// Lines of memory that will be wanted soon. Each step of a product fetches some, so that memory
// is as busy as the processor; there may be nonsense from `end` on, and as much room as the
// longest product may skip.
struct Soon {
    const void **next, **end;
};
constexpr long LINES_OF_A_STEP = 2;

// [rows][..] words times [steps][columns] words: float sums [rows][..], set or added to. On the
// left a row is `left_stride` words behind the one before, and a step `left_step`.
struct Product {
    const uint32_t* left;
    long left_stride;
    const uint32_t* right;
    long right_stride;
    float* sums;
    long sums_stride;
    long steps;
    bool add;
    long ahead = 0;  // how many words on the right side is fetched ahead, if it comes from far
    Soon* soon = nullptr;
    long left_step = 1;
};

// Groups of rows go over the same right side one after the other. The first of two fetches all of
// what comes next; of more, each fetches its part, so that memory is busy with all of them.
enum Fetch { NOTHING_MORE, AHEAD, PART_AHEAD, LINES };

struct Part {
    long group, groups;

    bool all() const { return groups <= 2; }
    int first(int vectors) const { return vectors * group / groups; }
    int last(int vectors) const { return vectors * (group + 1) / groups; }
};

template <class Kind, int ROWS, int VECTORS, Fetch FETCH = NOTHING_MORE>
inline void tile(const Product& of, long row, long column, Part part) {
    Floats sums[ROWS][VECTORS];
    float* target = of.sums + row * of.sums_stride + column;
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v)
            sums[r][v] =
                of.add ? load<Floats>(target + r * of.sums_stride + v * LANES) : Floats{};
    const uint32_t* left = of.left + row * of.left_stride;
    const uint32_t* right = of.right + column;
    const int first = FETCH == PART_AHEAD ? part.first(VECTORS) : 0;
    const int last = FETCH == PART_AHEAD ? part.last(VECTORS) : VECTORS;
    const void** lines = FETCH == LINES ? of.soon->next : nullptr;
    for (long step = 0; step < of.steps;
         ++step, left += of.left_step, right += of.right_stride) {
        Floats some[VECTORS];
        if (FETCH == LINES)
            for (long i = 0; i < LINES_OF_A_STEP; ++i) __builtin_prefetch(*lines++);
        for (int v = 0; v < VECTORS; ++v) some[v] = load<Floats>(right + v * LANES);
        if (FETCH == AHEAD || FETCH == PART_AHEAD)
            for (int v = first; v < last; ++v)
                __builtin_prefetch(right + v * LANES + of.ahead);
        for (int r = 0; r < ROWS; ++r) {
            uint32_t word = left[r * of.left_stride];
            for (int v = 0; v < VECTORS; ++v)
                sums[r][v] = Kind::multiply_add(sums[r][v], word, some[v]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int v = 0; v < VECTORS; ++v)
            store(target + r * of.sums_stride + v * LANES, sums[r][v]);
}

template <class Kind, int VECTORS, Fetch FETCH>
inline void tile_rows(const Product& of, long rows, long row, long column, Part part) {
    switch (rows) {
        case 1: return tile<Kind, 1, VECTORS, FETCH>(of, row, column, part);
        case 2: return tile<Kind, 2, VECTORS, FETCH>(of, row, column, part);
        case 3: return tile<Kind, 3, VECTORS, FETCH>(of, row, column, part);
        case 4: return tile<Kind, 4, VECTORS, FETCH>(of, row, column, part);
        case 5: return tile<Kind, 5, VECTORS, FETCH>(of, row, column, part);
        case 6: return tile<Kind, 6, VECTORS, FETCH>(of, row, column, part);
    }
    if constexpr (VECTORS == 2) {
        if (rows == 7) return tile<Kind, 7, VECTORS, FETCH>(of, row, column, part);
        if (rows == 8) return tile<Kind, 8, VECTORS, FETCH>(of, row, column, part);
    }
}

template <class Kind, int VECTORS>
inline void tile_fetching(const Product& of, long rows, long row, long column, Part part) {
    if (of.soon && of.soon->next < of.soon->end) {
        tile_rows<Kind, VECTORS, LINES>(of, rows, row, column, part);
        of.soon->next += of.steps * LINES_OF_A_STEP;
    } else if (of.ahead && !part.all()) {
        tile_rows<Kind, VECTORS, PART_AHEAD>(of, rows, row, column, part);
    } else if (of.ahead && row == 0) {
        tile_rows<Kind, VECTORS, AHEAD>(of, rows, row, column, part);
    } else {
        tile_rows<Kind, VECTORS, NOTHING_MORE>(of, rows, row, column, part);
    }
}

// All of it; `columns` is a multiple of LANES. Rows are shared out evenly over the tiles.
template <class Kind>
inline void multiply(const Product& of, long rows, long columns) {
    // Seven or eight fit into registers at once beside half as many columns, and are read once.
    const bool slim = (rows == 7 || rows == 8) && columns % (2 * LANES) == 0;
    const long groups = slim ? 1 : (rows + MOST_ROWS - 1) / MOST_ROWS;
    const long most = slim ? 2 : MOST_VECTORS;
    for (long column = 0; column < columns;) {
        long vectors = (columns - column) / LANES;
        vectors = vectors < most ? vectors : most;
        for (long group = 0; group < groups; ++group) {
            const long row = rows * group / groups, next = rows * (group + 1) / groups;
            const Part part{group, groups};
            switch (vectors) {
                case 1: tile_fetching<Kind, 1>(of, next - row, row, column, part); break;
                case 2: tile_fetching<Kind, 2>(of, next - row, row, column, part); break;
                case 3: tile_fetching<Kind, 3>(of, next - row, row, column, part); break;
                case 4: tile_fetching<Kind, 4>(of, next - row, row, column, part); break;
            }
        }
        column += vectors * LANES;
    }
}

}  // namespace pd
