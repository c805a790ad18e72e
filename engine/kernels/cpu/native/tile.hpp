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
    template <class Part>
    static Part multiply_add(Part sum, uint32_t left, Part right) {
        float factor;
        std::memcpy(&factor, &left, sizeof factor);
        return sum + factor * right;
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

// A tile's sums stay in registers: 24 of 32 with 64 bytes, or 12 of 16 with 32 bytes each. A vector
// that is wider than a register would live in memory, so sums are `Part`s of it.
#ifdef __AVX512F__
constexpr long MOST_ROWS = 6, MOST_VECTORS = 4, MOST_SLIM = 8;
typedef Floats Part;
#else
constexpr long MOST_ROWS = 6, MOST_VECTORS = 1, MOST_SLIM = 6;
typedef float Part __attribute__((vector_size(32)));
#endif
constexpr long PART_LANES = sizeof(Part) / sizeof(float);

// Lines of memory that will be wanted soon. Each step of a product fetches some, so that memory
// is as busy as the processor; there may be nonsense from `end` on, and as much room as the
// longest product may skip.
struct Soon {
    const void **next, **end;

    void fetch_rest() {
        while (next < end) __builtin_prefetch(*next++);
    }
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

// What is fetched ahead, as long as the right side. Tiles go over the right side several times,
// by columns and by groups of rows. Each fetches a stretch of its own: memory is busy with all of
// them, and is read in its order, whatever the order of the tiles is.
struct Ahead {
    const char* next;
    long lines = 0;  // in each step of the tile at hand

    static constexpr long LINE = LANES * sizeof(uint32_t);

    void share(long vectors, long group, long groups) {
        lines = next ? vectors * (group + 1) / groups - vectors * group / groups : 0;
    }
    void done(long steps) { next += lines * steps * LINE; }
};

enum Fetch { NOTHING_MORE, AHEAD, LINES };

template <class Kind, int ROWS, int VECTORS, Fetch FETCH = NOTHING_MORE>
inline void tile(const Product& of, long row, long column, const Ahead& ahead) {
    constexpr int PARTS = VECTORS * LANES / PART_LANES;
    Part sums[ROWS][PARTS];
    float* target = of.sums + row * of.sums_stride + column;
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PARTS; ++p)
            sums[r][p] =
                of.add ? load<Part>(target + r * of.sums_stride + p * PART_LANES) : Part{};
    const uint32_t* left = of.left + row * of.left_stride;
    const uint32_t* right = of.right + column;
    const char* next = ahead.next;
    const void** lines = FETCH == LINES ? of.soon->next : nullptr;
    for (long step = 0; step < of.steps;
         ++step, left += of.left_step, right += of.right_stride) {
        Part some[PARTS];
        if (FETCH == LINES)
            for (long i = 0; i < LINES_OF_A_STEP; ++i) __builtin_prefetch(*lines++);
        for (int p = 0; p < PARTS; ++p) some[p] = load<Part>(right + p * PART_LANES);
        if (FETCH == AHEAD)
            for (long i = 0; i < ahead.lines; ++i, next += Ahead::LINE) __builtin_prefetch(next);
        for (int r = 0; r < ROWS; ++r) {
            uint32_t word = left[r * of.left_stride];
            for (int p = 0; p < PARTS; ++p)
                sums[r][p] = Kind::multiply_add(sums[r][p], word, some[p]);
        }
    }
    for (int r = 0; r < ROWS; ++r)
        for (int p = 0; p < PARTS; ++p)
            store(target + r * of.sums_stride + p * PART_LANES, sums[r][p]);
}

template <class Kind, int VECTORS, Fetch FETCH>
inline void tile_rows(const Product& of, long rows, long row, long column,
                      const Ahead& ahead) {
    switch (rows) {
        case 1: return tile<Kind, 1, VECTORS, FETCH>(of, row, column, ahead);
        case 2: return tile<Kind, 2, VECTORS, FETCH>(of, row, column, ahead);
        case 3: return tile<Kind, 3, VECTORS, FETCH>(of, row, column, ahead);
        case 4: return tile<Kind, 4, VECTORS, FETCH>(of, row, column, ahead);
        case 5: return tile<Kind, 5, VECTORS, FETCH>(of, row, column, ahead);
        case 6: return tile<Kind, 6, VECTORS, FETCH>(of, row, column, ahead);
    }
    if constexpr (VECTORS == 2) {
        if (rows == 7) return tile<Kind, 7, VECTORS, FETCH>(of, row, column, ahead);
        if (rows == 8) return tile<Kind, 8, VECTORS, FETCH>(of, row, column, ahead);
    }
}

template <class Kind, int VECTORS>
inline void tile_fetching(const Product& of, long rows, long row, long column,
                          const Ahead& ahead) {
    if (of.soon && of.soon->next < of.soon->end) {
        tile_rows<Kind, VECTORS, LINES>(of, rows, row, column, ahead);
        of.soon->next += of.steps * LINES_OF_A_STEP;
    } else if (ahead.lines) {
        tile_rows<Kind, VECTORS, AHEAD>(of, rows, row, column, ahead);
    } else {
        tile_rows<Kind, VECTORS, NOTHING_MORE>(of, rows, row, column, ahead);
    }
}

// All of it; `columns` is a multiple of LANES. Rows are shared out evenly over the tiles.
template <class Kind>
inline void multiply(const Product& of, long rows, long columns) {
    // Eight fit into registers beside half as many columns: worth it where groups get fewer.
    const long full = (rows + MOST_ROWS - 1) / MOST_ROWS;
    const long fewer = (rows + MOST_SLIM - 1) / MOST_SLIM;
    const bool slim = fewer < full && columns % (2 * LANES) == 0;
    const long groups = slim ? fewer : full;
    const long most = slim ? 2 : MOST_VECTORS;
    Ahead ahead{of.ahead ? (const char*)(of.right + of.ahead) : nullptr};
    for (long column = 0; column < columns;) {
        long vectors = (columns - column) / LANES;
        vectors = vectors < most ? vectors : most;
        for (long group = 0; group < groups; ++group) {
            const long row = rows * group / groups, next = rows * (group + 1) / groups;
            ahead.share(vectors, group, groups);
            switch (vectors) {
                case 1: tile_fetching<Kind, 1>(of, next - row, row, column, ahead); break;
                case 2: tile_fetching<Kind, 2>(of, next - row, row, column, ahead); break;
                case 3: tile_fetching<Kind, 3>(of, next - row, row, column, ahead); break;
                case 4: tile_fetching<Kind, 4>(of, next - row, row, column, ahead); break;
            }
            ahead.done(of.steps);
        }
        column += vectors * LANES;
    }
}

}  // namespace pd
