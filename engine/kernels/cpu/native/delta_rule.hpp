// The delta rule at a few columns of one head's state, token by token.
//
// With decay a, rate b and the state S before a token:
//     u = b (v - a S^T k)     S' = a S + k u^T     read = S'^T q = a S^T q + (k . q) u
// so one pass over S, which also brings it up to date with the token before, finds both products
// that a token needs. Sums have one order, however tokens are cut into runs.
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

struct Token {
    const float *query, *key;
    float decay, rate, alike;  // alike: k . q
};

// A run of tokens of one head. Values are overwritten by what is read.
struct Run {
    float* state;  // [key_width, value_width]
    long key_width, value_width;
    const Token* tokens;
    long count;
    float* values;
    long stride;  // from a token's values to the next one's
    float* kept;  // [key_width, COLUMNS_OF_MANY * WIDTH]
};

// WHOLE: all of the vectors are. Loops over them are unrolled, so that sums stay in registers.
template <int N, bool WHOLE>
class Columns {
    const Run run;           // its own, which no store can change
    const long first, left;  // columns
    Vector learned[N] = {}, known[N], asked[N];

   public:
    Columns(const Run& run, long first)
        : run(run), first(first), left(run.value_width - first) {}

    // Of one token the state is read from memory, and changed there; of more it is kept meanwhile.
    void go() {
        const Token* token = run.tokens;
        auto fetched = [this](long row, int i) {
            __builtin_prefetch(at(row + ROWS_AHEAD, i), 1, 3);
            return read(row, i);
        };
        auto read_memory = [this](long row, int i) { return read(row, i); };
        auto read_kept = [this](long row, int i) { return load<Vector>(keep(row, i)); };
        auto write_memory = [this](long row, int i, Vector one) { write(row, i, one); };
        auto write_kept = [this](long row, int i, Vector one) { store(keep(row, i), one); };
        if (run.count == 1) {
            look<false>(*token, *token, fetched, [](long, int, Vector) {});
            learn(*token, 0);
            return update(*token, read_memory, write_memory);
        }
        look<false>(*token, *token, fetched, write_kept);
        learn(*token, 0);
        for (long next = 1; next < run.count; ++next, ++token) {
            look<true>(*token, token[1], read_kept, write_kept);
            learn(token[1], next);
        }
        update(*token, read_kept, write_memory);
    }

   private:
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
    void write(long row, int i, Vector one) const {
        std::memcpy(at(row, i), &one, WHOLE ? sizeof one : bytes_of(i));
    }

    // What the state says to a token's key and query; CHANGED by the token before it, first.
    template <bool CHANGED, class From, class To>
    void look(const Token& before, const Token& now, From from, To to) {
        Vector by[N], key_sums[N], query_sums[N];
        for (int i = 0; i < N; ++i)
            by[i] = learned[i], key_sums[i] = query_sums[i] = Vector{};
        const float *keys_before = before.key, *keys = now.key, *queries = now.query;
        const Vector decay = spread(before.decay);
        for (long row = 0, rows = run.key_width; row < rows; ++row) {
            const Vector key_before = spread(keys_before[row]);
            const Vector key = spread(keys[row]), query = spread(queries[row]);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) {
                Vector one = from(row, i);
                if (CHANGED) one = multiply_add(one, decay, key_before * by[i]);
                to(row, i, one);
                key_sums[i] = multiply_add(key, one, key_sums[i]);
                query_sums[i] = multiply_add(query, one, query_sums[i]);
            }
        }
        for (int i = 0; i < N; ++i) known[i] = key_sums[i], asked[i] = query_sums[i];
    }

    template <class From, class To>
    void update(const Token& before, From from, To to) const {
        Vector by[N];
        for (int i = 0; i < N; ++i) by[i] = learned[i];
        const float* keys = before.key;
        const Vector decay = spread(before.decay);
        for (long row = 0, rows = run.key_width; row < rows; ++row) {
            const Vector key = spread(keys[row]);
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i)
                to(row, i, multiply_add(from(row, i), decay, key * by[i]));
        }
    }

    void learn(const Token& now, long index) {
        float* values = run.values + index * run.stride + first;
        for (int i = 0; i < N; ++i, values += WIDTH) {
            Vector missed = multiply_add(known[i], spread(-now.decay), load<Vector>(values));
            learned[i] = missed * now.rate;
            store(values, multiply_add(learned[i], spread(now.alike), asked[i] * now.decay));
        }
    }
};

template <int N>
long learn_at(const Run& run, long first) {
    if (run.value_width - first >= N * WIDTH)
        Columns<N, true>(run, first).go();
    else
        Columns<N, false>(run, first).go();
    return first + N * WIDTH;
}

// All columns.
inline void learn(const Run& run) {
    const int most = run.count == 1 ? COLUMNS_OF_ONE : COLUMNS_OF_MANY;
    for (long first = 0; first < run.value_width;) {
        const long vectors = (run.value_width - first + WIDTH - 1) / WIDTH;
        if (vectors >= 8 && most >= 8)
            first = learn_at<8>(run, first);
        else if (vectors >= 4 && most >= 4)
            first = learn_at<4>(run, first);
        else if (vectors >= 2)
            first = learn_at<2>(run, first);
        else
            first = learn_at<1>(run, first);
    }
}

}  // namespace pd
