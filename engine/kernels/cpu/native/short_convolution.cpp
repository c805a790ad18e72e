// Gated short convolutions over spans of tokens; engine/kernels/short_convolution.py has the
// formulas. A task is some channels of one span, as channels share nothing. What enters goes
// round in as many rows as the convolution reads, and the last of it stays in the state.
#include "again.hpp"
#include "recurrent.hpp"

namespace pd {
namespace {

constexpr long CHANNELS_AT_ONCE = 128;

template <class Format>
class ConvolutionTask {
    typedef typename Format::Item Item;

    const RecurrentCall& call;
    const Span& span;
    const long first, count, channels, lines;
    float* const kept;
    float* rows;

   public:
    ConvolutionTask(const RecurrentPlan& plan, const RecurrentCall& call, long index, long first)
        : call(call),
          span(plan.spans[index]),
          first(first),
          count(std::min(call.channels() - first, CHANNELS_AT_ONCE)),
          channels(call.channels()),
          lines(call.taps + 1),
          kept(call.inputs + plan.tables[span.table + call.place] * call.inputs_stride + first) {
        static thread_local std::vector<float> all;
        if ((long)all.size() < lines * CHANNELS_AT_ONCE) all.resize(lines * CHANNELS_AT_ONCE);
        rows = all.data();
    }

    void run() const {
        begin();
        long turn = 0;  // the row of what entered first, of all that this token reads
        for (long token = 0; token < span.length; ++token) {
            const long at = (span.row + token) * call.mixed_stride + first;
            const Item* values = (const Item*)call.mixed + at;
            const Item* rates =
                (const Item*)call.rates + (span.row + token) * call.rates_stride + first;
            Item* to = (Item*)call.output + (span.row + token) * channels + first;
            each([&](long channel, long left) {
                store(row(turn + call.taps) + channel,
                      read_up_to<Format>(values + channel, left) *
                          read_up_to<Format>(rates + channel, left));
                write_up_to<Format>(to + channel,
                                    read_up_to<Format>(values + channels + channel, left) *
                                        convolved(turn, channel, left),
                                    left);
            });
            turn = turn == call.taps ? 0 : turn + 1;
        }
        keep(turn);
    }

   private:
    // Rows go round once at most.
    float* row(long index) const {
        return rows + (index < lines ? index : index - lines) * CHANNELS_AT_ONCE;
    }

    template <class Work>
    void each(Work work) const {
        for (long channel = 0; channel < count; channel += LANES) work(channel, count - channel);
    }

    // A sequence that begins has zeros, whatever lies in its block.
    void begin() const {
        for (long tap = 0; tap < call.taps; ++tap)
            each([&](long channel, long left) {
                store(row(tap) + channel,
                      span.start ? read_up_to<Float32>(kept + tap * channels + channel, left)
                                 : Floats{});
            });
    }

    Floats convolved(long turn, long channel, long left) const {
        Floats total = {};
        for (long tap = 0; tap < lines; ++tap)
            total += load<Floats>(row(turn + tap) + channel) *
                     read_up_to<Float32>(call.convolution + tap * channels + first + channel, left);
        return call.bias ? total + read_up_to<Float32>(call.bias + first + channel, left) : total;
    }

    void keep(long turn) const {
        for (long tap = 0; tap < call.taps; ++tap)
            each([&](long channel, long left) {
                write_up_to<Float32>(kept + tap * channels + channel,
                                     load<Floats>(row(turn + tap) + channel), left);
            });
    }
};

template <class Format>
void convolve(const RecurrentPlan& plan, const RecurrentCall& call) {
    const long parts = (call.channels() + CHANNELS_AT_ONCE - 1) / CHANNELS_AT_ONCE;
    const long tasks = plan.num_spans * parts;
    long tokens = 0;
    for (long span = 0; span < plan.num_spans; ++span) tokens += plan.spans[span].length;
    const long threads = useful(tokens * call.channels() * (call.taps + 1),
                                std::min((long)plan.threads, tasks));
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (long task = 0; task < tasks; ++task) {
        const long span = plan.num_spans - 1 - task / parts;  // long ones first
        ConvolutionTask<Format>(plan, call, span, task % parts * CHANNELS_AT_ONCE).run();
    }
}

}  // namespace
}  // namespace pd

extern "C" void pd_short_convolution(const pd::RecurrentPlan* plan,
                                     const pd::RecurrentCall* call) {
    switch (call->format) {
        case 0: return pd::convolve<pd::Float32>(*plan, *call);
        case 1: return pd::convolve<pd::BFloat16>(*plan, *call);
        case 2: return pd::convolve<pd::Float16>(*plan, *call);
    }
}

PD_AGAIN(pd_short_convolution)
