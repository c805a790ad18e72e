// The delta rule at a few columns of one head's state, token by token.
//
// With decay a, rate b and the state S before a token:
//     u = b (v - a S^T k)     S' = a S + k u^T     read = S'^T q = a S^T q + (k . q) u
// so one pass over S, which also brings it up to date with the token before, finds both products
// that a token needs. Sums have one order, however tokens are cut into runs.
#pragma once

#include "columns.hpp"

namespace pd {

struct DeltaToken {
    const float *query, *key;
    float decay, rate, alike;  // alike: k . q
};

// Loops over vectors are unrolled, so that sums stay in registers.
template <int N, bool WHOLE>
class DeltaColumns : Columns<DeltaToken, N, WHOLE> {
    using Base = Columns<DeltaToken, N, WHOLE>;
    using Base::first, Base::run;

    Vector learned[N] = {}, known[N], asked[N];

   public:
    DeltaColumns(const Run<DeltaToken>& run, long first) : Base(run, first) {}

    // Of one token the state is read from memory, and changed there; of more it is kept meanwhile.
    void go() {
        const DeltaToken* token = run.tokens;
        auto fetched = [this](long row, int i) { return this->fetch(row, i); };
        auto read_memory = [this](long row, int i) { return this->read(row, i); };
        auto read_kept = [this](long row, int i) { return load<Vector>(this->keep(row, i)); };
        auto write_memory = [this](long row, int i, Vector one) { this->write(row, i, one); };
        auto write_kept = [this](long row, int i, Vector one) {
            store(this->keep(row, i), one);
        };
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
    // What the state says to a token's key and query; CHANGED by the token before it, first.
    template <bool CHANGED, class From, class To>
    void look(const DeltaToken& before, const DeltaToken& now, From from, To to) {
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
    void update(const DeltaToken& before, From from, To to) const {
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

    void learn(const DeltaToken& now, long index) {
        float* values = run.values + index * run.stride + first;
        for (int i = 0; i < N; ++i, values += WIDTH) {
            Vector missed = multiply_add(known[i], spread(-now.decay), load<Vector>(values));
            learned[i] = missed * now.rate;
            store(values, multiply_add(learned[i], spread(now.alike), asked[i] * now.decay));
        }
    }
};

inline void learn(const Run<DeltaToken>& run) {
    go<DeltaColumns>(run, run.count == 1 ? COLUMNS_OF_ONE : COLUMNS_OF_MANY);
}

}  // namespace pd
