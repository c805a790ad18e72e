// Gated delta nets over spans of tokens; the formulas are in engine/kernels/delta_net.py.
//
// A task is a key head of one span, and all heads that share it.
#include <atomic>

#include "again.hpp"
#include "delta_rule.hpp"
#include "recurrent.hpp"

namespace pd {
namespace {

constexpr float SMALLEST = 1e-6f;  // added to squared lengths

inline float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }
inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

void scale_by(float* row, float factor, long size) {
    for (long at = 0; at < size; at += LANES)
        store(row + at, load<Floats>(row + at) * factor);  // a row has whole vectors
}

template <class Format>
class DeltaTask : HeadsOfSpan<Format> {
    using Base = HeadsOfSpan<Format>;
    using typename Base::Item;
    using Base::call, Base::heads, Base::room, Base::row, Base::span;

   public:
    DeltaTask(const RecurrentPlan& plan, const RecurrentCall& call, long span, long key_head)
        : Base(plan, call, span, {key_head, key_head * call.sharing(), call.sharing()}) {}

    void run() {
        this->begin();
        this->each_run(0, span.length, [this](long token, long count) {
            for (long i = 0; i < count; ++i) scale(row(i));
            for (long one = 0; one < heads.count; ++one) through(one, token, count);
        });
        this->keep_values();
        this->keep_keys();
    }

   private:
    void scale(float* query) const {
        float* key = query + room.key_wide;
        scale_by(query, length_one(query) / std::sqrt((float)call.key_width), call.key_width);
        scale_by(key, length_one(key), call.key_width);
    }
    float length_one(const float* of) const {
        return 1.0f / std::sqrt(product(of, of, call.key_width) + SMALLEST);
    }

    // One of the heads that share the key.
    void through(long one, long token, long count) {
        const long head = heads.head + one;
        DeltaToken tokens[RUN];
        for (long i = 0; i < count; ++i) {
            const float *query = row(i), *key = query + room.key_wide;
            const Item* rates = this->rates(token + i);
            const float rate = read_some<Format>(rates + head, 1)[0];
            const float decay = read_some<Format>(rates + call.value_heads + head, 1)[0];
            tokens[i] = {query, key,
                         std::exp(call.decay[head] * softplus(decay + call.offset[head])),
                         sigmoid(rate), product(query, key, call.key_width)};
        }
        float* values = this->values_of(one, 0);
        learn({this->state(one), call.key_width, call.value_width, tokens, count, values,
               room.wide, room.kept});
        for (long i = 0; i < count; ++i)
            gate_and_norm(values + i * room.wide, token + i, this->place_of(one));
    }

    void gate_and_norm(const float* read, long token, long first) const {
        const long size = call.value_width;
        const Item* gates = this->mixed(token) + this->channels + first;
        Item* to = (Item*)call.output + (span.row + token) * this->values + first;
        const float scale = 1.0f / std::sqrt(product(read, read, size) / (float)size + call.eps);
        for (long at = 0; at < size; at += LANES) {
            Floats gate = silu(read_up_to<Format>(gates + at, size - at));
            Floats normed = load<Floats>(read + at) * scale *
                            norm_weight<Format>(call, at, size - at);
            write_up_to<Format>(to + at, normed * gate, size - at);
        }
    }
};

// The last spans may be long ones, and are begun first.
template <class Format>
void delta_net(const RecurrentPlan& plan, const RecurrentCall& call) {
    const long count = plan.num_spans * call.key_heads;
    long tokens = 0;
    for (long span = 0; span < plan.num_spans; ++span) tokens += plan.spans[span].length;
    const long numbers = tokens * call.values() * call.key_width;
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

extern "C" void pd_delta_net(const pd::RecurrentPlan* plan, const pd::RecurrentCall* call) {
    switch (call->format) {
        case 0: return pd::delta_net<pd::Float32>(*plan, *call);
        case 1: return pd::delta_net<pd::BFloat16>(*plan, *call);
        case 2: return pd::delta_net<pd::Float16>(*plan, *call);
    }
}

PD_AGAIN(pd_delta_net)
