// Gated delta nets over spans of tokens; the formulas are in engine/kernels/delta_net.py.
//
// A task is a key head of one span: its query, its key, and the values of all heads that share
// them. It convolves their channels for a run of tokens, runs its heads over them, and goes on
// with the next run. States are changed in place.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "again.hpp"
#include "delta_rule.hpp"
#include "tasks.hpp"

namespace pd {

// What stays for all layers of a step. A span's table has its state blocks.
struct DeltaPlan {
    const Span* spans;
    const int64_t* tables;
    int64_t num_spans, threads;
};

// A layer. Strides count numbers: of tokens, or of blocks. A norm's weight is `wide` if it is
// float32 whatever the format is.
struct DeltaCall {
    const void *mixed, *rates;
    void* output;
    float *memory, *inputs;
    const float *convolution, *decay, *offset;
    const void* norm;
    int64_t mixed_stride, rates_stride, memory_stride, inputs_stride, place;
    int64_t key_heads, value_heads, key_width, value_width, taps, format, wide;
    float eps;
};

namespace {

constexpr long RUN = 32;           // tokens
constexpr float SMALLEST = 1e-6f;  // added to squared lengths

inline Floats silu(Floats x) { return x / (1.0f + exp(-x)); }
inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }
inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

float product(const float* one, const float* other, long size) {
    Floats total = {};
    for (long at = 0; at < size; at += LANES)
        total += read_up_to<Float32>(one + at, size - at) *
                 read_up_to<Float32>(other + at, size - at);
    return sum(total);
}

void scale_by(float* row, float factor, long size) {
    for (long at = 0; at < size; at += LANES)
        store(row + at, load<Floats>(row + at) * factor);  // a row has whole vectors
}

// Sizes of a task, and what a thread keeps for it: rows of a run's channels, behind those of the
// `taps` tokens before it; columns of a state; a norm's weight. A row has the query, the key, and
// each head's values, in whole vectors.
struct Room {
    const long sharing, key_wide, value_wide, wide;
    float *rows, *kept, *norm;

    explicit Room(const DeltaCall& call)
        : sharing(call.value_heads / call.key_heads),
          key_wide(round_up(call.key_width)),
          value_wide(round_up(call.value_width)),
          wide(2 * key_wide + sharing * value_wide) {
        static thread_local std::vector<float> all;
        const long lines = (call.taps + RUN) * wide, columns = COLUMNS_OF_MANY * WIDTH;
        const size_t size = lines + call.key_width * columns + value_wide + LANES;
        if (all.size() < size) all.resize(size);
        rows = (float*)(((uintptr_t)all.data() + 63) / 64 * 64);
        kept = rows + lines;
        norm = kept + call.key_width * columns;
    }
};

template <class Format>
class DeltaTask {
    typedef typename Format::Item Item;

    const DeltaCall& call;
    const Span& span;
    const long head, keys, values, channels, block;
    const Room room;

   public:
    DeltaTask(const DeltaPlan& plan, const DeltaCall& call, long span, long head)
        : call(call),
          span(plan.spans[span]),
          head(head),
          keys(call.key_heads * call.key_width),
          values(call.value_heads * call.value_width),
          channels(2 * keys + values),
          block(plan.tables[plan.spans[span].table + call.place]),
          room(call) {}

    void run() {
        begin();
        for (long token = 0; token < span.length; token += RUN) {
            const long count = std::min(RUN, (long)span.length - token);
            convolve(token, count);
            for (long one = 0; one < room.sharing; ++one) through(one, token, count);
            std::copy(row(count), row(count + call.taps), row(0));
        }
        for (long tap = 0; tap < call.taps; ++tap)
            each_part([&](long channel, float* at, long left) {
                write_up_to<Float32>(inputs(tap) + channel, load<Floats>(at), left);
            }, row(tap));
    }

   private:
    float* row(long index) const { return room.rows + index * room.wide; }
    float* inputs(long tap) const {
        return call.inputs + block * call.inputs_stride + tap * channels;
    }
    float* state(long value_head) const {
        return call.memory + block * call.memory_stride +
               value_head * call.key_width * call.value_width;
    }
    const Item* mixed(long token) const {
        return (const Item*)call.mixed + (span.row + token) * call.mixed_stride;
    }

    // Calls `work` with a channel, its place in `row`, and how many are left from there, for each
    // vector of channels.
    template <class Work>
    void each_part(Work work, float* row) const {
        auto part = [&](long channel, float* to, long size) {
            for (long at = 0; at < size; at += LANES) work(channel + at, to + at, size - at);
        };
        part(head * call.key_width, row, call.key_width);
        part(keys + head * call.key_width, row + room.key_wide, call.key_width);
        for (long one = 0; one < room.sharing; ++one)
            part(2 * keys + (head * room.sharing + one) * call.value_width,
                 row + 2 * room.key_wide + one * room.value_wide, call.value_width);
    }

    // A sequence that begins has zeros, whatever lies in its block.
    void begin() {
        const long size = room.sharing * call.key_width * call.value_width;
        if (!span.start) std::fill_n(state(head * room.sharing), size, 0.0f);
        for (long tap = 0; tap < call.taps; ++tap)
            each_part([&](long channel, float* at, long left) {
                store(at, span.start ? read_up_to<Float32>(inputs(tap) + channel, left)
                                     : Floats{});
            }, row(tap));
        for (long at = 0; at < call.value_width; at += LANES) {
            const long left = call.value_width - at;
            store(room.norm + at,
                  call.wide ? read_up_to<Float32>((const float*)call.norm + at, left)
                            : read_up_to<Format>((const Item*)call.norm + at, left));
        }
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
                store(at, silu(total));
            }, row(one));
        for (long one = 0; one < count; ++one) {
            float *query = row(one), *key = query + room.key_wide;
            scale_by(query, length_one(query) / std::sqrt((float)call.key_width), call.key_width);
            scale_by(key, length_one(key), call.key_width);
        }
    }

    float length_one(const float* of) const {
        return 1.0f / std::sqrt(product(of, of, call.key_width) + SMALLEST);
    }

    // One of the heads that share the key.
    void through(long one, long token, long count) {
        const long value_head = head * room.sharing + one;
        Token tokens[RUN];
        for (long i = 0; i < count; ++i) {
            const float *query = row(i), *key = query + room.key_wide;
            const Item* rates =
                (const Item*)call.rates + (span.row + token + i) * call.rates_stride;
            const float rate = read_some<Format>(rates + value_head, 1)[0];
            const float decay = read_some<Format>(rates + call.value_heads + value_head, 1)[0];
            tokens[i] = {query, key,
                         std::exp(call.decay[value_head] *
                                  softplus(decay + call.offset[value_head])),
                         sigmoid(rate), product(query, key, call.key_width)};
        }
        float* values = row(0) + 2 * room.key_wide + one * room.value_wide;
        learn({state(value_head), call.key_width, call.value_width, tokens, count, values,
               room.wide, room.kept});
        for (long i = 0; i < count; ++i)
            gate_and_norm(values + i * room.wide, token + i, value_head * call.value_width);
    }

    void gate_and_norm(const float* read, long token, long first) const {
        const long size = call.value_width;
        const Item* gates = mixed(token) + channels + first;
        Item* to = (Item*)call.output + (span.row + token) * values + first;
        const float scale = 1.0f / std::sqrt(product(read, read, size) / (float)size + call.eps);
        for (long at = 0; at < size; at += LANES) {
            Floats gate = silu(read_up_to<Format>(gates + at, size - at));
            Floats normed = load<Floats>(read + at) * scale * load<Floats>(room.norm + at);
            write_up_to<Format>(to + at, normed * gate, size - at);
        }
    }
};

// The last spans may be long ones, and are begun first.
template <class Format>
void delta_net(const DeltaPlan& plan, const DeltaCall& call) {
    const long count = plan.num_spans * call.key_heads;
    long tokens = 0;
    for (long span = 0; span < plan.num_spans; ++span) tokens += plan.spans[span].length;
    const long numbers = tokens * call.value_heads * call.key_width * call.value_width;
    const long threads = useful(numbers, std::min((long)plan.threads, count));
    std::atomic<long> first(0);
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (long mine; (mine = first++) < count;) {
        const long span = plan.num_spans - 1 - mine / call.key_heads;
        DeltaTask<Format>(plan, call, span, mine % call.key_heads).run();
    }
}

}  // namespace
}  // namespace pd

extern "C" void pd_delta_net(const pd::DeltaPlan* plan, const pd::DeltaCall* call) {
    switch (call->format) {
        case 0: return pd::delta_net<pd::Float32>(*plan, *call);
        case 1: return pd::delta_net<pd::BFloat16>(*plan, *call);
        case 2: return pd::delta_net<pd::Float16>(*plan, *call);
    }
}

PD_AGAIN(pd_delta_net)
