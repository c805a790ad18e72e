// What Mamba-2 does to a few columns of one head's state, token by token.
//
// With decay a, step d and the state S before a token:
//     S' = a S + k (d v)^T     read = S'^T q + skip v
// What is written does not depend on S, so one pass over S is enough for several tokens. Sums have
// one order, however tokens are cut into runs and passes.
#pragma once

#include "columns.hpp"

namespace pd {

struct MambaToken {
    const float *query, *key;
    float decay, step, skip;
};

// Tokens of a pass, and vectors of columns, so that all sums of a pass stay in registers.
#if defined(__AVX512F__)
constexpr int TOKENS_OF_PASS = 4, COLUMNS_OF_PASS = 2;
#else
constexpr int TOKENS_OF_PASS = 2, COLUMNS_OF_PASS = 2;
#endif
static_assert(COLUMNS_OF_PASS <= COLUMNS_OF_MANY, "or they are not kept");

template <int N, bool WHOLE>
class MambaColumns : Columns<MambaToken, N, WHOLE> {
    using Base = Columns<MambaToken, N, WHOLE>;
    using Base::first, Base::run;

   public:
    MambaColumns(const Run<MambaToken>& run, long first) : Base(run, first) {}

    // The first pass reads the state from memory, the last one writes it there; between them it
    // is kept.
    void go() const {
        long token = 0;
        for (; token + TOKENS_OF_PASS <= run.count; token += TOKENS_OF_PASS)
            pass<TOKENS_OF_PASS>(token);
        for (; token < run.count; ++token) pass<1>(token);
    }

   private:
    template <int TOKENS>
    void pass(long token) const {
        const bool begins = token == 0, ends = token + TOKENS == run.count;
        auto fetched = [this](long row, int i) { return this->fetch(row, i); };
        auto read_kept = [this](long row, int i) { return load<Vector>(this->keep(row, i)); };
        auto write_memory = [this](long row, int i, Vector one) { this->write(row, i, one); };
        auto write_kept = [this](long row, int i, Vector one) {
            store(this->keep(row, i), one);
        };
        if (begins && ends) return pass<TOKENS>(token, fetched, write_memory);
        if (begins) return pass<TOKENS>(token, fetched, write_kept);
        if (ends) return pass<TOKENS>(token, read_kept, write_memory);
        pass<TOKENS>(token, read_kept, write_kept);
    }

    // Loops over vectors and tokens are unrolled, so that sums stay in registers.
    template <int TOKENS, class From, class To>
    void pass(long token, From from, To to) const {
        const MambaToken* now = run.tokens + token;
        float* values = run.values + token * run.stride + first;
        const float *keys[TOKENS], *queries[TOKENS];
        Vector decays[TOKENS], written[TOKENS][N], sums[TOKENS][N];
        for (int t = 0; t < TOKENS; ++t) {
            keys[t] = now[t].key, queries[t] = now[t].query, decays[t] = spread(now[t].decay);
            for (int i = 0; i < N; ++i) {
                written[t][i] = load<Vector>(values + t * run.stride + i * WIDTH) * now[t].step;
                sums[t][i] = Vector{};
            }
        }
        for (long row = 0, rows = run.key_width; row < rows; ++row) {
            Vector ours[N];
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) ours[i] = from(row, i);
#pragma GCC unroll 4
            for (int t = 0; t < TOKENS; ++t) {
                const Vector key = spread(keys[t][row]), query = spread(queries[t][row]);
#pragma GCC unroll 8
                for (int i = 0; i < N; ++i) {
                    ours[i] = multiply_add(ours[i], decays[t], key * written[t][i]);
                    sums[t][i] = multiply_add(query, ours[i], sums[t][i]);
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < N; ++i) to(row, i, ours[i]);
        }
        for (int t = 0; t < TOKENS; ++t)
            for (int i = 0; i < N; ++i) {
                float* value = values + t * run.stride + i * WIDTH;
                store(value, multiply_add(load<Vector>(value), spread(now[t].skip), sums[t][i]));
            }
    }
};

inline void write_and_read(const Run<MambaToken>& run) {
    go<MambaColumns>(run, run.count == 1 ? COLUMNS_OF_ONE : COLUMNS_OF_PASS);
}

}  // namespace pd
