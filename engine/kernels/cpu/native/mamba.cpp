// Mamba-2 over spans of tokens; the formulas are in engine/kernels/mamba.py.
//
// A task is some heads of one span, so many that all threads have work: heads share nothing but
// their key head's query and key, which each task convolves for itself. A norm is over more heads
// than a task has, so tokens go through a layer in rounds of a run: when all heads of a round are
// done, rows are normed, and then comes the next round. What a sequence keeps of queries' and
// keys' last inputs is changed where no task reads it any more, behind its last round.
#include "again.hpp"
#include "mamba_rule.hpp"
#include "recurrent.hpp"

namespace pd {
namespace {

constexpr long TASKS_OF_A_THREAD = 4;

// log(1 + e^x), precise for small e^x, too: what 1 + e^x is rounded to is made up for.
inline Floats softplus(Floats x) {
    const Floats grown = exp(x), sum = grown + 1.0f, added = sum - 1.0f;
    const Floats precise = added > 0.0f ? log(sum) * (grown / added) : grown;
    return x > 20.0f ? x : precise;
}

template <class Format>
class MambaTask : HeadsOfSpan<Format> {
    using Base = HeadsOfSpan<Format>;
    using typename Base::Item;
    using Base::call, Base::heads, Base::room, Base::row, Base::span;

    float steps[RUN][LANES], decays[RUN][LANES];

   public:
    MambaTask(const RecurrentPlan& plan, const RecurrentCall& call, long span, Heads heads)
        : Base(plan, call, span, heads) {}

    // The span's tokens from `from` to `to`. What is read and gated goes to rows of `gated`, if
    // that is there, else to the output.
    void run(long from, long to, float* gated) {
        if (!from) this->begin();
        this->each_run(from, to, [&](long token, long count) {
            read_rates(token, count);
            for (long one = 0; one < heads.count; ++one)
                through(one, token, count, gated ? gated + (token - from) * this->values : gated);
        });
        if (to == span.length) this->keep_values();
    }

    using Base::keep_keys;

   private:
    void read_rates(long token, long count) {
        const long left = heads.count;
        const Floats offset = read_up_to<Float32>(call.offset + heads.head, left);
        const Floats decay = read_up_to<Float32>(call.decay + heads.head, left);
        for (long i = 0; i < count; ++i) {
            const Floats rate = read_up_to<Format>(this->rates(token + i) + heads.head, left);
            const Floats step = softplus(rate + offset);
            store(steps[i], step);
            store(decays[i], exp(step * decay));
        }
    }

    void through(long one, long token, long count, float* gated) {
        MambaToken tokens[RUN];
        for (long i = 0; i < count; ++i)
            tokens[i] = {row(i), row(i) + room.key_wide, decays[i][one], steps[i][one],
                         call.skip[heads.head + one]};
        float* values = this->values_of(one, 0);
        write_and_read({this->state(one), call.key_width, call.value_width, tokens, count, values,
                        room.wide, room.kept});
        for (long i = 0; i < count; ++i, values += room.wide)
            if (gated)
                gate<Float32>(values, token + i, one, gated + i * this->values);
            else
                gate<Format>(values, token + i, one,
                             (Item*)call.output + (span.row + token + i) * this->values);
    }

    template <class To>
    void gate(const float* read, long token, long one, typename To::Item* row) const {
        const Item* gates = this->mixed(token) + this->channels + this->place_of(one);
        typename To::Item* to = row + this->place_of(one);
        for (long at = 0; at < call.value_width; at += LANES) {
            const long left = call.value_width - at;
            const Floats gate = silu(read_up_to<Format>(gates + at, left));
            write_up_to<To>(to + at, load<Floats>(read + at) * gate, left);
        }
    }
};

// A group of a row's channels.
template <class Format>
void norm(const RecurrentCall& call, const float* gated, long row, long group) {
    const long size = call.values() / call.norm_groups, first = group * size;
    typename Format::Item* to =
        (typename Format::Item*)call.output + row * call.values() + first;
    gated += first;
    const float scale = 1.0f / std::sqrt(product(gated, gated, size) / (float)size + call.eps);
    for (long at = 0; at < size; at += LANES) {
        const long left = size - at;
        const Floats normed = read_up_to<Float32>(gated + at, left) * scale;
        write_up_to<Format>(to + at, normed * norm_weight<Format>(call, first + at, left), left);
    }
}

// All tokens of a batch, in rounds: of `at_once` tokens of each span that has so many left.
template <class Format>
class Mamba {
    const RecurrentPlan& plan;
    const RecurrentCall& call;
    long longest = 0, tokens = 0, at_once;
    std::vector<long> rows;  // of what is gated: each span's first one, and their number
    float* gated = nullptr;

   public:
    Mamba(const RecurrentPlan& plan, const RecurrentCall& call)
        : plan(plan), call(call), rows(plan.num_spans + 1) {
        for (long span = 0; span < plan.num_spans; ++span) {
            const long length = plan.spans[span].length;
            longest = std::max(longest, length), tokens += length;
            rows[span + 1] = rows[span] + std::min(length, RUN);
        }
        at_once = call.norm ? RUN : longest;
        static thread_local std::vector<float> all;
        const size_t size = call.norm ? rows.back() * call.values() : 0;
        if (all.size() < size) all.resize(size);
        if (call.norm) gated = all.data();
    }

    void run() {
        const long most = std::min((long)plan.threads, plan.num_spans * call.value_heads);
        const long threads = useful(tokens * call.values() * call.key_width, most);
#pragma omp parallel num_threads(threads) if (threads > 1)
        for (long from = 0; from < longest; from += at_once) {
            go_through_heads(from, heads_at_once(from, threads));
            keep_keys(from);
            if (call.norm) norm_rows(from);
        }
    }

   private:
    // Each thread calls these, and takes part.
    void go_through_heads(long from, long heads) {
        const long parts = (call.sharing() + heads - 1) / heads, of_span = call.key_heads * parts;
#pragma omp for schedule(dynamic)
        for (long task = 0; task < plan.num_spans * of_span; ++task) {
            const long span = plan.num_spans - 1 - task / of_span;  // long ones first
            const long key_head = task % of_span / parts, first = task % parts * heads;
            const long to = std::min((long)plan.spans[span].length, from + at_once);
            if (to <= from) continue;
            MambaTask<Format>(plan, call, span,
                              {key_head, key_head * call.sharing() + first,
                               std::min(heads, call.sharing() - first)})
                .run(from, to, gated ? gated + rows[span] * call.values() : gated);
        }
    }

    void keep_keys(long from) {
#pragma omp for schedule(static) nowait
        for (long one = 0; one < plan.num_spans * call.key_heads; ++one) {
            const long span = one / call.key_heads, left = plan.spans[span].length - from;
            if (0 < left && left <= at_once)
                MambaTask<Format>(plan, call, span, {one % call.key_heads, 0, 1}).keep_keys();
        }
    }

    void norm_rows(long from) {
#pragma omp for schedule(static)
        for (long one = 0; one < rows.back() * call.norm_groups; ++one) {
            const long row = one / call.norm_groups;
            const long span = std::upper_bound(rows.begin(), rows.end(), row) - rows.begin() - 1;
            const long token = from + row - rows[span];
            if (token < plan.spans[span].length)
                norm<Format>(call, gated + row * call.values(), plan.spans[span].row + token,
                             one % call.norm_groups);
        }
    }

    // Of one key head, for a task: a vector's worth of rates, or fewer, if threads lacked work.
    long heads_at_once(long from, long threads) const {
        long spans = 0;
        for (long span = 0; span < plan.num_spans; ++span)
            spans += plan.spans[span].length > from;
        const long heads = spans * call.value_heads / (threads * TASKS_OF_A_THREAD);
        return std::max(1L, std::min({heads, call.sharing(), LANES}));
    }
};

}  // namespace
}  // namespace pd

extern "C" void pd_mamba(const pd::RecurrentPlan* plan, const pd::RecurrentCall* call) {
    switch (call->format) {
        case 0: return pd::Mamba<pd::Float32>(*plan, *call).run();
        case 1: return pd::Mamba<pd::BFloat16>(*plan, *call).run();
        case 2: return pd::Mamba<pd::Float16>(*plan, *call).run();
    }
}

PD_AGAIN(pd_mamba)
