// What attention over paged KV is divided into: groups of queries that share their keys, and
// tasks, each a group and a run of keys, with a running result that can be joined with others.
#pragma once

#include <algorithm>
#include <cstdint>

#include "numbers.hpp"

namespace pd {

constexpr float NOTHING = -1e30f;  // as a score: it weighs nothing

struct Span {
    int64_t start, length, row, table;
};

// What stays for all layers of a step. Strides and offsets count items; tables hold block ids.
// Rows of keys are `width` long; values are `value_offset` behind them, `value_width` long. KV is
// `rounded` to fp8, or in the format of the queries.
struct Plan {
    const Span* spans;
    const int64_t* tables;
    const void* memory;
    int64_t num_spans, heads, kv_heads, width, value_width, value_offset;
    int64_t block_size, block_stride, format, rounded, threads;
};

// What differs between layers. A window, softcap or sinks of zero are none.
struct Call {
    const void* queries;
    void* output;
    const float* sinks;
    int64_t query_stride, layer_offset, window;
    float scale, softcap;
};

// Queries of a span, of `tokens` tokens from `token` on, and the heads that share KV heads from
// `head` on; keys from `from` to `to` are seen, in so many tasks.
struct Group {
    long span, head, heads, token, tokens, from, to, parts, first_task;
};

struct Task {
    long group, from, to;
};

inline long round_up(long count) { return (count + LANES - 1) / LANES * LANES; }

// A task's running result: per row a maximum, a sum, and `wide` weighted values. Rows are those
// of the first KV head, of the second, ...; of each, all heads of the first token, ...
struct Running {
    float *most = nullptr, *total = nullptr, *mixed = nullptr;

    static long size(long rows, long wide) { return rows * (wide + 2); }
    Running() = default;
    Running after(long rows, long wide) const {
        Running rest = *this;
        rest.most += rows, rest.total += rows, rest.mixed += rows * wide;
        return rest;
    }
    Running(float* at, long rows) : most(at), total(at + rows), mixed(at + 2 * rows) {}
};

}  // namespace pd
