// What nets have in common that keep a state: engine/kernels/recurrent.py has the formulas.
//
// Value heads of one span that share a key head are computed together: their channels, and their
// query's and key's, are convolved for a run of tokens, the net's rule goes over each head, and
// then comes the next run. States are changed in place.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "columns.hpp"
#include "tasks.hpp"

namespace pd {

// What stays for all layers of a step. A span's table has its state blocks.
struct RecurrentPlan {
    const Span* spans;
    const int64_t* tables;
    int64_t num_spans, threads;
};

// A layer; null is what a net has not. Strides count numbers: of tokens, or of blocks. A norm's
// weight is `wide` if it is float32 whatever the format is.
struct RecurrentCall {
    const void *mixed, *rates;
    void* output;
    float *memory, *inputs;
    const float *convolution, *bias, *decay, *offset, *skip;
    const void* norm;
    int64_t mixed_stride, rates_stride, memory_stride, inputs_stride, place;
    int64_t key_heads, value_heads, key_width, value_width, taps, norm_groups, format, wide;
    float eps;

    long keys() const { return key_heads * key_width; }
    long values() const { return value_heads * value_width; }
    long channels() const { return 2 * keys() + values(); }
    long sharing() const { return value_heads / key_heads; }
};

constexpr long RUN = 32;  // tokens

inline Floats silu(Floats x) { return x / (1.0f + exp(-x)); }

inline float product(const float* one, const float* other, long size) {
    Floats total = {};
    for (long at = 0; at < size; at += LANES)
        total += read_up_to<Float32>(one + at, size - at) *
                 read_up_to<Float32>(other + at, size - at);
    return sum(total);
}

// Of so many numbers that are left, a norm's weights.
template <class Format>
Floats norm_weight(const RecurrentCall& call, long at, long left) {
    return call.wide ? read_up_to<Float32>((const float*)call.norm + at, left)
                     : read_up_to<Format>((const typename Format::Item*)call.norm + at, left);
}

// What a thread keeps for some heads: rows of a run's channels, behind those of the `taps` tokens
// before it; columns of a state. A row has the query, the key, and each head's values, in whole
// vectors.
struct Room {
    const long key_wide, value_wide, wide;
    float *rows, *kept;

    Room(const RecurrentCall& call, long heads)
        : key_wide(round_up(call.key_width)),
          value_wide(round_up(call.value_width)),
          wide(2 * key_wide + heads * value_wide) {
        static thread_local std::vector<float> all;
        const long lines = (call.taps + RUN) * wide, columns = COLUMNS_OF_MANY * WIDTH;
        const size_t size = lines + call.key_width * columns + LANES;
        if (all.size() < size) all.resize(size);
        rows = (float*)(((uintptr_t)all.data() + 63) / 64 * 64);
        kept = rows + lines;
    }
};

// The value heads from `head` on, so many, that share a key head.
struct Heads {
    long key_head, head, count;
};

template <class Format>
class HeadsOfSpan {
   protected:
    typedef typename Format::Item Item;

    const RecurrentCall& call;
    const Span& span;
    const Heads heads;
    const long keys, values, channels, block;
    const Room room;

    HeadsOfSpan(const RecurrentPlan& plan, const RecurrentCall& call, long span, Heads heads)
        : call(call),
          span(plan.spans[span]),
          heads(heads),
          keys(call.keys()),
          values(call.values()),
          channels(call.channels()),
          block(plan.tables[plan.spans[span].table + call.place]),
          room(call, heads.count) {}

    float* row(long index) const { return room.rows + index * room.wide; }
    // Of one of these heads, in a row.
    float* values_of(long one, long index) const {
        return row(index) + 2 * room.key_wide + one * room.value_wide;
    }
    float* state(long one) const {
        return call.memory + block * call.memory_stride +
               (heads.head + one) * call.key_width * call.value_width;
    }
    const Item* mixed(long token) const {
        return (const Item*)call.mixed + (span.row + token) * call.mixed_stride;
    }
    const Item* rates(long token) const {
        return (const Item*)call.rates + (span.row + token) * call.rates_stride;
    }
    // A value head's first one, among gates and in the output.
    long place_of(long one) const { return (heads.head + one) * call.value_width; }

    // A sequence that begins has zeros, whatever lies in its block.
    void begin() const {
        const long size = heads.count * call.key_width * call.value_width;
        if (!span.start) std::fill_n(state(0), size, 0.0f);
    }

    // Calls `work` with the first token of a run and their number; their channels are convolved.
    template <class Work>
    void each_run(long from, long to, Work work) {
        for (long tap = 0; tap < call.taps; ++tap)
            each_part([&](long channel, float* at, long left) {
                store(at, input(from - call.taps + tap, channel, left));
            }, row(tap));
        for (long token = from; token < to; token += RUN) {
            const long count = std::min(RUN, to - token);
            convolve(token, count);
            work(token, count);
            std::copy(row(count), row(count + call.taps), row(0));
        }
    }

    // What the sequence keeps of the span's last inputs, of these heads' own channels.
    void keep_values() const {
        keep(2 * keys + place_of(0), heads.count * call.value_width);
    }
    // Of the channels that all heads of a key head share: when none of them will read them.
    void keep_keys() const {
        keep(heads.key_head * call.key_width, call.key_width);
        keep(keys + heads.key_head * call.key_width, call.key_width);
    }

   private:
    float* inputs(long tap) const {
        return call.inputs + block * call.inputs_stride + tap * channels;
    }

    // Of a token of the span, or of one before it.
    Floats input(long token, long channel, long left) const {
        if (token >= 0) return read_up_to<Format>(mixed(token) + channel, left);
        if (!span.start) return Floats{};
        return read_up_to<Float32>(inputs(call.taps + token) + channel, left);
    }

    void keep(long channel, long size) const {
        for (long tap = 0; tap < call.taps; ++tap)
            for (long at = channel, left = size; left > 0; at += LANES, left -= LANES)
                write_up_to<Float32>(inputs(tap) + at,
                                     input(span.length - call.taps + tap, at, left), left);
    }

    // Calls `work` with a channel, its place in `row`, and how many are left from there, for each
    // vector of channels.
    template <class Work>
    void each_part(Work work, float* row) const {
        auto part = [&](long channel, float* to, long size) {
            for (long at = 0; at < size; at += LANES) work(channel + at, to + at, size - at);
        };
        part(heads.key_head * call.key_width, row, call.key_width);
        part(keys + heads.key_head * call.key_width, row + room.key_wide, call.key_width);
        for (long one = 0; one < heads.count; ++one)
            part(2 * keys + place_of(one), row + 2 * room.key_wide + one * room.value_wide,
                 call.value_width);
    }

    // A token's row is overwritten when no later token looks back at it.
    void convolve(long token, long count) {
        for (long one = 0; one < count; ++one)
            each_part([&](long channel, float* at, long left) {
                store(at, read_up_to<Format>(mixed(token + one) + channel, left));
            }, row(call.taps + one));
        for (long one = 0; one < count; ++one)
            each_part([&](long channel, float* at, long left) {
                Floats total = {};
                for (long tap = 0; tap <= call.taps; ++tap)
                    total += load<Floats>(at + tap * room.wide) *
                             read_up_to<Float32>(
                                 call.convolution + tap * channels + channel, left);
                if (call.bias) total += read_up_to<Float32>(call.bias + channel, left);
                store(at, silu(total));
            }, row(one));
    }
};

}  // namespace pd
