// Attention over paged KV that reads each byte of it once.
//
// A task is a run of queries of one sequence, all heads that share one KV head or neighbouring
// ones, and a run of keys. It goes over the keys in tiles: they are scored, weighed with a running
// maximum (Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention"), and the values are
// added up; how, differs for few_queries.hpp and many_queries.hpp. Long contexts of short spans are
// cut into PARTS at fixed positions, so that many threads share one sequence, and its result does
// not depend on who else is there.
#include <algorithm>
#include <atomic>
#include <memory>
#include <type_traits>
#include <vector>

#include "again.hpp"
#include "few_queries.hpp"
#include "many_queries.hpp"

namespace pd {
namespace {

constexpr long TASK_ROWS = 64, PART = 1024, SHORT_SPAN = 16;

// WHOLE: rows are full vectors, as with all head sizes in use.
template <class Format, class Kind, bool WHOLE, class Kept>
class Attention {
    typedef typename Format::Item Item;

    const Plan& plan;
    const Call& call;
    const long sharing, value_width, wide;  // wide: floats of a value, in whole vectors
    const Many<Format, Kind, WHOLE, Kept> many;
    std::vector<Group> groups;
    std::vector<Task> tasks;
    std::vector<float> partial;
    long partial_size = 0;

   public:
    Attention(const Plan& plan, const Call& call)
        : plan(plan),
          call(call),
          sharing(plan.heads / plan.kv_heads),
          value_width(plan.value_width),
          wide(round_up(value_width)),
          many(plan, call) {
        for (long span = 0; span < plan.num_spans; ++span) divide(span);
    }

    // Every thread knows its next task while it is at one, to have its first keys fetched.
    void run() {
        const long count = tasks.size();
        if (tasks.size() > groups.size()) partial.resize(count * partial_size);
        std::unique_ptr<std::atomic<long>[]> done(new std::atomic<long>[groups.size()]());
        std::atomic<long> first(0);
#pragma omp parallel num_threads(plan.threads) if (count > 1)
        for (long mine = first++, next; mine < count; mine = next) {
            next = first++;
            work(mine, next < count ? next : mine, done.get());
        }
    }

   private:
    long rows_of(const Group& group) const { return group.heads * group.tokens * sharing; }

    void work(long index, long next, std::atomic<long>* done) {
        static thread_local std::vector<float> alone;
        const Task& task = tasks[index];
        const Group& group = groups[task.group];
        const long rows = rows_of(group);
        alone.resize(std::max((long)alone.size(), Running::size(rows, wide)));
        Running running(group.parts > 1 ? &partial[index * partial_size] : &alone[0], rows);
        attend(group, task, tasks[next], running);
        if (group.parts == 1)
            finish(group, running);
        else if (done[task.group].fetch_add(1) + 1 == group.parts)
            join(group);
    }

    void attend(const Group& group, const Task& task, const Task& next, Running running) {
#ifdef PD_PAIRS
        if constexpr (std::is_same_v<Format, BFloat16>)
            if (is_few(plan, group.tokens * sharing))
                return attend_few<Kept>(plan, call, group, task, groups[next.group], next, running);
#endif
        many.attend(group, task, running);
    }

    void divide(long index) {
        const Span& span = plan.spans[index];
        const long tokens = std::max(1L, TASK_ROWS / sharing);
        const long heads = heads_at_once(span.length * sharing);
        for (long head = 0; head < plan.kv_heads; head += heads)
            for (long token = 0; token < span.length; token += tokens)
                divide({index, head, std::min(heads, plan.kv_heads - head), token,
                        std::min(tokens, span.length - token)});
    }

    long heads_at_once(long rows) const {
#ifdef PD_PAIRS
        if (std::is_same_v<Format, BFloat16> && is_few(plan, rows))
            return std::max(1L, FEW_WIDTH / plan.width);
#endif
        return 1;
    }

    void divide(Group group) {
        const Span& span = plan.spans[group.span];
        const long first = span.start + group.token, to = first + group.tokens;
        const long from = call.window ? std::max(0L, (long)(first - call.window + 1)) : 0;
        group.from = from, group.to = to, group.first_task = tasks.size(), group.parts = 1;
        if (span.length <= SHORT_SPAN) group.parts = (to - 1) / PART - from / PART + 1;
        for (long part = 0; part < group.parts; ++part) {
            long cut = (from / PART + part) * PART;
            long begin = std::max(from, group.parts > 1 ? cut : from);
            long end = group.parts > 1 ? std::min(to, cut + PART) : to;
            tasks.push_back({(long)groups.size(), begin, end});
        }
        if (group.parts > 1)
            partial_size = std::max(partial_size, Running::size(rows_of(group), wide));
        groups.push_back(group);
    }

    // Parts in the order of their keys, into the first.
    void join(const Group& group) {
        const long rows = rows_of(group);
        Running whole(&partial[group.first_task * partial_size], rows);
        for (long part = 1; part < group.parts; ++part) {
            Running one(&partial[(group.first_task + part) * partial_size], rows);
            for (long row = 0; row < rows; ++row) {
                float now = std::max(whole.most[row], one.most[row]);
                float ours = exp(splat(whole.most[row] - now))[0];
                float theirs = exp(splat(one.most[row] - now))[0];
                whole.most[row] = now;
                whole.total[row] = whole.total[row] * ours + one.total[row] * theirs;
                for (long at = row * wide; at < (row + 1) * wide; at += LANES)
                    store(whole.mixed + at, load<Floats>(whole.mixed + at) * ours +
                                                load<Floats>(one.mixed + at) * theirs);
            }
        }
        finish(group, whole);
    }

    // A sink is one more score, of a key without a value.
    void finish(const Group& group, Running running) {
        for (long row = 0; row < rows_of(group); ++row) {
            long token = plan.spans[group.span].row + group.token + row / sharing % group.tokens;
            long head = (group.head + row / (group.tokens * sharing)) * sharing + row % sharing;
            float total = running.total[row], factor = 1.0f;
            if (call.sinks) {
                float sink = call.sinks[head], now = std::max(sink, running.most[row]);
                factor = exp(splat(running.most[row] - now))[0];
                total = total * factor + exp(splat(sink - now))[0];
            }
            const float* mixed = running.mixed + row * wide;
            Item* target = (Item*)call.output + (token * plan.heads + head) * value_width;
            for (long at = 0; at < value_width; at += LANES) {
                Floats value = load<Floats>(mixed + at) * (factor / total);
                if (value_width - at >= LANES)
                    Format::write(target + at, value);
                else
                    write_some<Format>(target + at, value, value_width - at);
            }
        }
    }
};

}  // namespace
}  // namespace pd

namespace pd {
namespace {

template <class Format, class Kind, class Kept>
void attend_kept(const Plan& plan, const Call& call) {
    constexpr long VECTOR = LANES * Kind::UNIT;
    if (plan.width % VECTOR == 0 && plan.value_width % VECTOR == 0)
        Attention<Format, Kind, true, Kept>(plan, call).run();
    else
        Attention<Format, Kind, false, Kept>(plan, call).run();
}

template <class Format, class Kind>
void attend(const Plan& plan, const Call& call) {
    if (plan.rounded)
        attend_kept<Format, Kind, E4m3>(plan, call);
    else
        attend_kept<Format, Kind, Format>(plan, call);
}

}  // namespace
}  // namespace pd

extern "C" void pd_attend(const pd::Plan* plan, const pd::Call* told) {
    constexpr int64_t NO_WINDOW = 1 << 30;  // no context is as long, and lanes count in 32 bits
    pd::Call call = *told;
    if (call.window >= NO_WINDOW) call.window = 0;
    switch (plan->format) {
        case 0: return pd::attend<pd::Float32, pd::Singles>(*plan, call);
        case 1: return pd::attend<pd::BFloat16, pd::Pairs>(*plan, call);
        case 2: return pd::attend<pd::Float16, pd::Singles>(*plan, call);
    }
}

PD_AGAIN(pd_attend)
