// Some columns of one head's state, as wide as registers, and the walk over all of them.
#pragma once

#include <algorithm>

#include "numbers.hpp"

#if defined(__AVX512F__) || defined(__FMA__)
#include <immintrin.h>
#endif

namespace pd {

// Vectors as wide as a register: sums have to stay in those. How many there is room for, when a
// state is changed by many tokens and by one, and a * b + c, rounded once if the CPU can: where a
// sum has two products, the compiler would choose which one is not rounded, not everywhere alike.
#if defined(__AVX512F__)
typedef float Vector __attribute__((vector_size(64)));
constexpr int COLUMNS_OF_MANY = 4, COLUMNS_OF_ONE = 8;
inline Vector multiply_add(Vector a, Vector b, Vector c) {
    return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
inline Vector spread(float one) { return (Vector)_mm512_set1_ps(one); }
#elif defined(__FMA__)
typedef float Vector __attribute__((vector_size(32)));
constexpr int COLUMNS_OF_MANY = 2, COLUMNS_OF_ONE = 4;
inline Vector multiply_add(Vector a, Vector b, Vector c) {
    return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
inline Vector spread(float one) { return (Vector)_mm256_set1_ps(one); }
#else
typedef float Vector __attribute__((vector_size(16)));
constexpr int COLUMNS_OF_MANY = 2, COLUMNS_OF_ONE = 4;
inline Vector multiply_add(Vector a, Vector b, Vector c) { return a * b + c; }
inline Vector spread(float one) { return Vector{one, one, one, one}; }
#endif
constexpr long WIDTH = sizeof(Vector) / sizeof(float);
constexpr long ROWS_AHEAD = 16;  // of a state, which are fetched

// A run of tokens of one head. Values are overwritten by what is read.
template <class Token>
struct Run {
    float* state;  // [key_width, value_width]
    long key_width, value_width;
    const Token* tokens;
    long count;
    float* values;
    long stride;  // from a token's values to the next one's
    float* kept;  // [key_width, COLUMNS_OF_MANY * WIDTH]
};

// N vectors of columns; WHOLE: all of the vectors are.
template <class Token, int N, bool WHOLE>
class Columns {
   protected:
    const Run<Token> run;    // its own, which no store can change
    const long first, left;  // columns

    Columns(const Run<Token>& run, long first)
        : run(run), first(first), left(run.value_width - first) {}

    size_t bytes_of(int i) const {
        return std::min(left - i * WIDTH, WIDTH) * sizeof(float);
    }
    float* keep(long row, int i) const { return run.kept + (row * N + i) * WIDTH; }
    float* at(long row, int i) const {
        return run.state + row * run.value_width + first + i * WIDTH;
    }
    Vector read(long row, int i) const {
        if (WHOLE || left - i * WIDTH >= WIDTH) return load<Vector>(at(row, i));
        Vector some = {};
        std::memcpy(&some, at(row, i), bytes_of(i));
        return some;
    }
    Vector fetch(long row, int i) const {
        __builtin_prefetch(at(row + ROWS_AHEAD, i), 1, 3);
        return read(row, i);
    }
    void write(long row, int i, Vector one) const {
        std::memcpy(at(row, i), &one, WHOLE ? sizeof one : bytes_of(i));
    }
};

template <template <int, bool> class Rule, int N, class Token>
long go_at(const Run<Token>& run, long first) {
    if (run.value_width - first >= N * WIDTH)
        Rule<N, true>(run, first).go();
    else
        Rule<N, false>(run, first).go();
    return first + N * WIDTH;
}

// A rule at all columns, at most so many vectors at once.
template <template <int, bool> class Rule, class Token>
void go(const Run<Token>& run, int most) {
    for (long first = 0; first < run.value_width;) {
        const long vectors = (run.value_width - first + WIDTH - 1) / WIDTH;
        if (vectors >= 8 && most >= 8)
            first = go_at<Rule, 8>(run, first);
        else if (vectors >= 4 && most >= 4)
            first = go_at<Rule, 4>(run, first);
        else if (vectors >= 2)
            first = go_at<Rule, 2>(run, first);
        else
            first = go_at<Rule, 1>(run, first);
    }
}

}  // namespace pd
