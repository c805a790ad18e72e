// Attention over paged KV that reads each byte of it once.
//
// A task is a run of queries of one sequence, all heads that share one KV head, and a run of
// keys. It goes over the keys in tiles: keys are turned into columns, scored, weighed with a
// running maximum (Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention"), and the
// values are added up. Long contexts of short spans are cut into PARTS at fixed positions, so
// that many threads share one sequence, and its result does not depend on who else is there.
#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "tile.hpp"

namespace pd {
namespace {

constexpr long TILE = 128, TASK_ROWS = 64, PART = 1024, SHORT_SPAN = 16;
constexpr float NOTHING = -1e30f;

struct Span {
    int64_t start, length, row, table;
};

// What stays for all layers of a step. Strides and offsets count items; tables hold block ids.
// Rows of keys are `width` long; values are `value_offset` behind them, `value_width` long.
struct Plan {
    const Span* spans;
    const int64_t* tables;
    const void* memory;
    int64_t num_spans, heads, kv_heads, width, value_width, value_offset;
    int64_t block_size, block_stride, format, threads;
};

// What differs between layers. A window, softcap or sinks of zero are none.
struct Call {
    const void* queries;
    void* output;
    const float* sinks;
    int64_t query_stride, layer_offset, window;
    float scale, softcap;
};

struct Group {
    long span, head, token, tokens, from, to, parts, first_task;
};

struct Task {
    long group, from, to;
};

long round_up(long count) { return (count + LANES - 1) / LANES * LANES; }

// A task's running result: per row a maximum, a sum, and `wide` weighted values.
struct Running {
    float *most, *total, *mixed;

    static long size(long rows, long wide) { return rows * (wide + 2); }
    Running(float* at, long rows) : most(at), total(at + rows), mixed(at + 2 * rows) {}
};

struct Scratch {
    std::vector<uint32_t> words;
    std::vector<const void*> lines;
    uint32_t *queries, *keys, *values, *weights;
    float *scores, *running;

    // `row_bytes` of a key and a value; the room behind is what one product may skip.
    void fit(long rows, long deep, long wide, long row_bytes) {
        long most = TILE * (row_bytes / 64 + 4) + LINES_OF_A_STEP * std::max(deep, TILE);
        if ((long)lines.size() < most) lines.resize(most);
        long sizes[] = {rows * deep, deep * TILE, TILE * wide, rows * TILE, rows * TILE,
                        Running::size(rows, wide)};
        long all = LANES;
        for (long one : sizes) all += round_up(one);
        if ((long)words.size() < all) words.assign(all, 0);
        uint32_t* at = words.data();
        at += (64 - (uintptr_t)at % 64) % 64 / 4;
        uint32_t* parts[6];
        for (int i = 0; i < 6; at += round_up(sizes[i++])) parts[i] = at;
        queries = parts[0], keys = parts[1], values = parts[2], weights = parts[3];
        scores = (float*)parts[4], running = (float*)parts[5];
    }
};

// Where the keys of a tile lie, and how many they are; values are at a fixed distance. Behind
// the last, the first is repeated: it will be masked, but it must be a number.
template <class Item>
struct Rows {
    const Item* keys[TILE];
    long count;
};

// WHOLE: rows are full vectors, as with all head sizes in use.
template <class Format, class Kind, bool WHOLE>
class Attention {
    typedef typename Format::Item Item;
    static constexpr bool AS_IS = sizeof(Item) * Kind::UNIT == 4;  // words need no conversion

    const Plan& plan;
    const Call& call;
    const long sharing, width, value_width;
    const long deep, wide;  // words of a key, floats of a value, in whole vectors
    std::vector<Group> groups;
    std::vector<Task> tasks;
    std::vector<float> partial;
    long partial_size = 0;

   public:
    Attention(const Plan& plan, const Call& call)
        : plan(plan),
          call(call),
          sharing(plan.heads / plan.kv_heads),
          width(plan.width),
          value_width(plan.value_width),
          deep(round_up((width + Kind::UNIT - 1) / Kind::UNIT)),
          wide(round_up(value_width)) {
        for (long span = 0; span < plan.num_spans; ++span)
            for (long head = 0; head < plan.kv_heads; ++head) divide(span, head);
    }

    void run() {
        bool cut = tasks.size() > groups.size();
        if (cut) partial.resize(tasks.size() * partial_size);
        std::unique_ptr<std::atomic<long>[]> done(new std::atomic<long>[groups.size()]());
        long count = tasks.size();
#pragma omp parallel for schedule(dynamic, 1) num_threads(plan.threads) if (count > 1)
        for (long index = 0; index < count; ++index) {
            const Group& group = groups[tasks[index].group];
            static thread_local Scratch scratch;
            long rows = group.tokens * sharing;
            scratch.fit(rows, deep, wide, 2 * width * sizeof(Item));
            Running running(
                group.parts > 1 ? &partial[index * partial_size] : scratch.running, rows);
            attend(group, tasks[index], scratch, running);
            if (group.parts == 1) {
                finish(group, running);
            } else if (done[tasks[index].group].fetch_add(1) + 1 == group.parts) {
                join(group);
            }
        }
    }

   private:
    void divide(long index, long head) {
        const Span& span = plan.spans[index];
        long at_once = std::max(1L, TASK_ROWS / sharing);
        for (long token = 0; token < span.length; token += at_once) {
            long tokens = std::min(at_once, (long)span.length - token);
            long first = span.start + token, to = first + tokens;
            long from = call.window ? std::max(0L, (long)(first - call.window + 1)) : 0;
            long parts = 1;
            if (span.length <= SHORT_SPAN) parts = (to - 1) / PART - from / PART + 1;
            groups.push_back({index, head, token, tokens, from, to, parts, (long)tasks.size()});
            for (long part = 0; part < parts; ++part) {
                long cut = (from / PART + part) * PART;
                long begin = std::max(from, parts > 1 ? cut : from);
                long end = parts > 1 ? std::min(to, cut + PART) : to;
                tasks.push_back({(long)groups.size() - 1, begin, end});
            }
            if (parts > 1)
                partial_size = std::max(partial_size, Running::size(tokens * sharing, wide));
        }
    }

    void attend(const Group& group, const Task& task, Scratch& scratch, Running running) {
        long rows = group.tokens * sharing;
        std::fill(running.most, running.most + rows, NOTHING);
        std::fill(running.total, running.total + rows, 0.0f);
        std::fill(running.mixed, running.mixed + rows * wide, 0.0f);
        for (long row = 0; row < rows; ++row) {
            const Item* query = (const Item*)call.queries +
                                (plan.spans[group.span].row + group.token + row / sharing) *
                                    call.query_stride +
                                (group.head * sharing + row % sharing) * width;
            for (long word = 0; word < deep; word += LANES)
                store(scratch.queries + row * deep + word, words(query, word, width));
        }
        Rows<Item> rows_of[2];
        Soon soon{scratch.lines.data(), scratch.lines.data()};
        find(group, task.from, task.to, rows_of[0], soon);
        fetch_rest(soon);
        for (long key = task.from, turn = 0; key < task.to; key += TILE, turn ^= 1) {
            soon = {scratch.lines.data(), scratch.lines.data()};
            if (key + TILE < task.to) find(group, key + TILE, task.to, rows_of[turn ^ 1], soon);
            const Rows<Item>& some = rows_of[turn];
            const long columns = round_up(some.count);
            pack_keys(some.keys, columns, scratch.keys);
            multiply<Kind>({scratch.queries, deep, scratch.keys, TILE, scratch.scores, TILE,
                            (width + Kind::UNIT - 1) / Kind::UNIT, false, 0, &soon},
                           rows, columns);
            for (long row = 0; row < rows; ++row)
                weigh(group, row, key, key + some.count, scratch, running);
            pack_values(some.keys, columns, scratch.values);
            multiply<Kind>({scratch.weights, TILE / Kind::UNIT, scratch.values, wide,
                            running.mixed, wide, columns / Kind::UNIT, true, 0, &soon},
                           rows, wide);
            fetch_rest(soon);
        }
    }

    // Up to TILE keys from `key` on, block by block. They are far: fetch them soon, use them next.
    void find(const Group& group, long key, long to, Rows<Item>& rows, Soon& soon) {
        const Item* memory = (const Item*)plan.memory + call.layer_offset +
                             group.head * plan.block_size * width;
        const int64_t* table = plan.tables + plan.spans[group.span].table;
        long block = key / plan.block_size, token = key % plan.block_size;
        rows.count = std::min(TILE, to - key);
        for (long i = 0; i < rows.count; ++block, token = 0) {
            const Item* at = memory + table[block] * plan.block_stride + token * width;
            long some = std::min(rows.count - i, (long)plan.block_size - token);
            want(at, some * width, soon);
            if (plan.value_offset) want(at + plan.value_offset, some * width, soon);
            for (long end = i + some; i < end; ++i, at += width) rows.keys[i] = at;
        }
        for (long i = rows.count; i < round_up(rows.count); ++i) rows.keys[i] = rows.keys[0];
    }

    static void fetch_rest(Soon& soon) {
        while (soon.next < soon.end) __builtin_prefetch(*soon.next++);
    }

    static void want(const Item* from, long count, Soon& soon) {
        constexpr long LINE = 64 / sizeof(Item);
        const void** lines = soon.end;
        const long some = (count + LINE - 1) / LINE;
        for (long line = 0; line < some; ++line) lines[line] = from + line * LINE;
        soon.end = lines + some;
    }

    // LANES words of a row of `size` items from `word` on, zeros behind its end.
    static Words words(const Item* row, long word, long size) {
        long left = size - word * Kind::UNIT, most = LANES * Kind::UNIT;
        if constexpr (AS_IS) {
            if (WHOLE || left >= most) return load<Words>(row + word * Kind::UNIT);
            Words some = {};
            if (left > 0) std::memcpy(&some, row + word * Kind::UNIT, left * sizeof(Item));
            return some;
        } else {
            if (WHOLE || left >= most) return (Words)Format::read(row + word);
            return left > 0 ? (Words)read_some<Format>(row + word, left) : Words{};
        }
    }

    void pack_keys(const Item* const* keys, long columns, uint32_t* packed) {
        const long deep = this->deep, width = this->width;
        for (long key = 0; key < columns; key += LANES)
            for (long word = 0; word < deep; word += LANES) {
                Words some[LANES];
                for (long i = 0; i < LANES; ++i) some[i] = words(keys[key + i], word, width);
                transpose(some);
                for (long i = 0; i < LANES; ++i)
                    store(packed + (word + i) * TILE + key, some[i]);
            }
    }

    void pack_values(const Item* const* keys, long columns, uint32_t* packed) {
        const long wide = this->wide, size = value_width, offset = plan.value_offset;
        for (long key = 0; key < columns; key += Kind::UNIT, packed += wide) {
            const Item *first = keys[key] + offset, *second = keys[key + Kind::UNIT - 1] + offset;
            if constexpr (Kind::UNIT == 1) {
                for (long at = 0; at < wide; at += LANES)
                    store(packed + at, words(first, at, size));
            } else {
                for (long at = 0; at < wide; at += 2 * LANES) {  // words at / 2: items from at on
                    Shorts one = (Shorts)words(first, at / 2, size);
                    Shorts two = (Shorts)words(second, at / 2, size);
                    store(packed + at, interleave_low(one, two));
                    if (WHOLE || at + LANES < wide)
                        store(packed + at + LANES, interleave_high(one, two));
                }
            }
        }
    }

    static Shorts interleave_low(Shorts a, Shorts b) {
        constexpr Shorts order = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                  8,  40, 9,  41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
        return __builtin_shuffle(a, b, order);
    }

    static Shorts interleave_high(Shorts a, Shorts b) {
        constexpr Shorts order = {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                  24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
        return __builtin_shuffle(a, b, order);
    }

    // Scores of one row become weights, relative to the largest score so far.
    void weigh(const Group& group, long row, long key, long to, Scratch& scratch,
               Running& running) {
        const long vectors = (to - key + LANES - 1) / LANES;
        long position = plan.spans[group.span].start + group.token + row / sharing;
        long low = call.window ? std::max(0L, (long)(position - call.window + 1 - key)) : 0;
        long high = std::min(position, to - 1) - key;
        const float* scores = scratch.scores + row * TILE;
        Floats some[TILE / LANES], most = splat(NOTHING);
        for (long v = 0; v < vectors; ++v) {
            some[v] = load<Floats>(scores + v * LANES) * call.scale;
            if (call.softcap > 0) some[v] = tanh(some[v] / call.softcap) * call.softcap;
            if (low > 0 || high < vectors * LANES - 1) {
                Ints at = counting() + (int)(v * LANES);
                Ints seen = (at >= (int)low) & (at <= (int)high);
                some[v] = seen ? some[v] : splat(2 * NOTHING);
            }
            most = larger(most, some[v]);
        }
        float before = running.most[row], now = std::max(before, largest(most));
        Floats total = {};
        for (long v = 0; v < vectors; ++v) {
            some[v] = exp(some[v] - now);
            total += some[v];
        }
        keep(scratch.weights + row * (TILE / Kind::UNIT), some, vectors);
        float shrink = before == now ? 1.0f : exp(splat(before - now))[0];
        running.most[row] = now;
        running.total[row] = running.total[row] * shrink + sum(total);
        if (shrink == 1.0f) return;
        float* mixed = running.mixed + row * wide;
        for (long at = 0; at < wide; at += LANES)
            store(mixed + at, load<Floats>(mixed + at) * shrink);
    }

    static void keep(uint32_t* weights, const Floats* some, long vectors) {
        for (long v = 0; v < vectors; ++v) {
            if constexpr (Kind::UNIT == 1)
                store(weights + v * LANES, some[v]);
            else
                store((uint16_t*)weights + v * LANES, round_to_bfloat16(some[v]));
        }
    }

    // Parts in the order of their keys, into the first.
    void join(const Group& group) {
        long rows = group.tokens * sharing;
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
        for (long row = 0; row < group.tokens * sharing; ++row) {
            long token = plan.spans[group.span].row + group.token + row / sharing;
            long head = group.head * sharing + row % sharing;
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

template <class Format, class Kind>
void attend(const Plan& plan, const Call& call) {
    constexpr long VECTOR = LANES * Kind::UNIT;
    if (plan.width % VECTOR == 0 && plan.value_width % VECTOR == 0)
        Attention<Format, Kind, true>(plan, call).run();
    else
        Attention<Format, Kind, false>(plan, call).run();
}

}  // namespace
}  // namespace pd

extern "C" void pd_attend(const pd::Plan* plan, const pd::Call* call) {
    switch (plan->format) {
        case 0: return pd::attend<pd::Float32, pd::Singles>(*plan, *call);
        case 1: return pd::attend<pd::BFloat16, pd::Pairs>(*plan, *call);
        case 2: return pd::attend<pd::Float16, pd::Singles>(*plan, *call);
    }
}
