// Attention of a few queries, of bfloat16, that share their keys: what a step of decode is made
// of, bound by memory. So nothing of KV is packed: a key is broadcast from where it lies, some
// words at a time, against the same words of all rows, spread over the lanes of a vector. The
// scores come out with neighbouring keys in neighbouring lanes, which is what values want. KV in
// fp8 is copied as bfloat16 first, a tile at a time, into the cache nearest to the processor.
#pragma once

#include <vector>

#include "few_tiles.hpp"
#include "lanes.hpp"
#include "tasks.hpp"

#ifdef PD_PAIRS

namespace pd {

constexpr long MOST_FEW = 8;     // rows of a head
constexpr long FEW_WIDTH = 128;  // of heads together: their keys fill a page of 4 KiB
constexpr long MOST_HEADS = FEW_WIDTH / 32;

// Whether `attend_few` can do it: rows of whole vectors, and blocks of whole runs.
inline bool is_few(const Plan& plan, long rows) {
    return rows <= MOST_FEW && plan.width % 32 == 0 && plan.value_width == plan.width &&
           plan.value_offset && plan.block_size % RUN == 0;
}

template <int ROWS, class Kept>
class Few {
    typedef pd::FewTile<uint16_t> FewTile;
    typedef typename Kept::Item Item;
    typedef pd::FewTile<Item> KeptTile;
    static constexpr int SIDE = ROWS == 1 ? 1 : ROWS == 2 ? 2 : ROWS <= 4 ? 4 : 8;
    static constexpr int EACH = LANES / SIDE;
    static constexpr long VECTORS = FewTile::KEYS / EACH;
    static constexpr float SLACK = 8.0f;  // octaves that a weight may have above one
    static constexpr int CHAINS = SIDE < 4 ? SIDE : 4;  // of sums that do not wait for each other
    typedef Lanes<EACH> Row;

    struct Head {
        Running running;
        uint32_t* queries;
        Floats most, total;
    };

    const Plan& plan;
    const Call& call;
    const Group& group;
    const long width;
    const FewTiles<Kept> tiles;
    Head heads[MOST_HEADS];
    Floats scores[VECTORS];
    alignas(64) uint32_t weights[VECTORS * LANES / 2];

   public:
    static long scratch(const Plan& plan) { return plan.width / 2 * SIDE; }

    Few(const Plan& plan, const Call& call, const Group& group, Running running,
        uint32_t* scratch, uint16_t* copies)
        : plan(plan), call(call), group(group), width(plan.width), tiles{plan, call, copies} {
        std::fill(running.mixed, running.mixed + group.heads * ROWS * width, 0.0f);
        for (long head = 0; head < group.heads; ++head) {
            Running own = running.after(head * ROWS, width);
            heads[head] = {own, scratch + head * Few::scratch(plan), splat(NOTHING), Floats{}};
            spread(head);
        }
    }

    // Keys `from` to `to`; where they end, the first of `after` are fetched for who comes next.
    void attend(const Task& task, const Group& after, const Task& next) {
        long key = task.from / RUN * RUN;
        KeptTile found = tiles.locate(group, key, task.to);
        for (; key < task.to; key += FewTile::KEYS) {
            const KeptTile later = key + FewTile::KEYS < task.to
                                       ? tiles.locate(group, key + FewTile::KEYS, task.to)
                                       : tiles.locate(after, next.from / RUN * RUN, next.to);
            const FewTile tile = tiles.as_bfloat16(found, group.heads);
            Fetching<Item> soon(later, plan, group.heads);
            const long keys = std::min(FewTile::KEYS, task.to - key);
            for (long head = 0; head < group.heads; ++head) {
                score(tile, soon, head, keys);
                weigh(task, heads[head], key, (keys + RUN - 1) / RUN * SIDE);
                for (long at = 0; at < width; at += 2 * LANES)
                    if (keys == FewTile::KEYS)
                        mix<true>(tile, soon, head, at, keys);
                    else
                        mix<false>(tile, soon, head, at, keys);
            }
            found = later;
        }
        for (long head = 0; head < group.heads; ++head) finish(heads[head]);
    }

   private:
    // Chunks of EACH words: those of the first row, of the second, ...; zeros for no row.
    void spread(long head) {
        uint32_t* queries = heads[head].queries;
        std::fill(queries, queries + scratch(plan), 0);
        const long sharing = plan.heads / plan.kv_heads;
        for (long row = 0; row < ROWS; ++row) {
            long token = plan.spans[group.span].row + group.token + row / sharing;
            const uint16_t* query = (const uint16_t*)call.queries + token * call.query_stride +
                                    ((group.head + head) * sharing + row % sharing) * width;
            for (long word = 0; word < width / 2; word += EACH)
                std::memcpy(queries + word * SIDE + row * EACH, query + 2 * word, EACH * 4);
        }
    }

    void score(const FewTile& tile, Fetching<Item>& soon, long head, long keys) {
        const uint32_t* queries = heads[head].queries;
        for (long i = 0; i * RUN < keys; ++i) {
            const uint16_t* run = tile.runs[i] + head * tile.head_stride;
            const Item* later = soon.piece(width / 2);
            switch (width) {
                case 64: score_run<64>(queries, run, later, scores + i * SIDE); break;
                case 128: score_run<128>(queries, run, later, scores + i * SIDE); break;
                default: score_run<0>(queries, run, later, scores + i * SIDE); break;
            }
        }
    }

    template <long WIDTH>
    void score_run(const uint32_t* queries, const uint16_t* keys, const Item* soon,
                   Floats* scores) {
        const long width = WIDTH ? WIDTH : this->width;
        Floats sums[RUN] = {};
        for (long word = 0; word < width / 2; word += EACH, keys += 2 * EACH) {
            const Words query = load<Words>(queries + word * SIDE);
            for (long line = 0; line < EACH; ++line, soon += 32)
                __builtin_prefetch(soon, 0, NEARNESS);
#pragma GCC unroll 16
            for (long key = 0; key < RUN; ++key)
                sums[key] = (Floats)_mm512_dpbf16_ps((__m512)sums[key],
                                                     (__m512bh)Row::broadcast(keys + key * width),
                                                     (__m512bh)query);
        }
#pragma GCC unroll 8
        for (long i = 0; i < SIDE; ++i) scores[i] = Row::add_up(sums + i * EACH);
    }

    // Scores of a tile from `key` on become weights, relative to the largest so far; or to one
    // that is not much smaller, as what there is would have to be made to weigh less each time.
    void weigh(const Task& task, Head& head, long key, long vectors) {
        float factor = call.scale * LOG2_E;
        if (call.softcap > 0 || !sees_all(task, key, key + vectors * EACH)) {
            for (long v = 0; v < vectors; ++v) {
                scores[v] *= factor;
                if (call.softcap > 0) cap(scores[v]);
                hide(task, key + v * EACH, scores[v]);
            }
            factor = 1.0f;
        }
        const Floats now = Row::fold_rows(most_of(vectors), larger) * factor;
        if (any_larger(now, head.most + SLACK)) shrink(head, larger(now, head.most));
        Floats totals[CHAINS] = {};
        for (long v = 0; v < vectors; v += CHAINS)
#pragma GCC unroll 4
            for (long chain = 0; chain < CHAINS; ++chain) {
                Floats weight = exp2_short(scores[v + chain] * factor - head.most);
                totals[chain] += weight;
                store(weights + (v + chain) * LANES / 2, round_to_bfloat16(weight));
            }
        for (long chain = 0; chain < CHAINS; ++chain) head.total += totals[chain];
    }

    Floats most_of(long vectors) const {
        Floats most[CHAINS];
        for (long chain = 0; chain < CHAINS; ++chain) most[chain] = scores[chain];
        for (long v = CHAINS; v < vectors; v += CHAINS)
#pragma GCC unroll 4
            for (long chain = 0; chain < CHAINS; ++chain)
                most[chain] = larger(most[chain], scores[v + chain]);
        for (long chain = 1; chain < CHAINS; ++chain) most[0] = larger(most[0], most[chain]);
        return most[0];
    }

    void cap(Floats& score) const {
        const float most = call.softcap * LOG2_E;
        score = tanh(score / most) * most;
    }

    long first_position() const { return plan.spans[group.span].start + group.token; }

    // Whether all rows see all keys from `key` to `end`.
    bool sees_all(const Task& task, long key, long end) const {
        const long first = first_position(), last = first + group.tokens - 1;
        return key >= task.from && end <= task.to && end - 1 <= first &&
               (!call.window || key > last - call.window);
    }

    void hide(const Task& task, long key, Floats& score) const {
        const int sharing = plan.heads / plan.kv_heads;
        Ints at = counting() % EACH + (int)key;
        Ints position = counting() / EACH / sharing + (int)first_position();
        Ints seen = (at >= (int)task.from) & (at < (int)task.to) & (at <= position);
        if (call.window) seen &= at > position - (int)call.window;
        score = seen ? score : splat(2 * NOTHING);
    }

    // A larger score was found: what there is weighs less.
    void shrink(Head& head, Floats now) {
        const Floats factor = exp2_short(head.most - now);
        head.total *= factor;
        head.most = now;
        for (long row = 0; row < ROWS; ++row) {
            float* mixed = head.running.mixed + row * width;
            for (long at = 0; at < width; at += LANES)
                store(mixed + at, load<Floats>(mixed + at) * factor[row * EACH]);
        }
    }

    // 32 numbers of each value, weighed and added up, in the order that unpacking pairs gives.
    template <bool WHOLE>
    void mix(const FewTile& tile, Fetching<Item>& soon, long head, long at, long keys) {
        float* mixed = heads[head].running.mixed + at;
        Floats sums[ROWS][2];
        for (int row = 0; row < ROWS; ++row)
            for (int v = 0; v < 2; ++v)
                sums[row][v] = load<Floats>(mixed + row * width + v * LANES);
        const long offset = tile.value_offset + head * tile.head_stride + at;
        for (long run = 0; run * RUN < (WHOLE ? FewTile::KEYS : keys); ++run) {
            const uint32_t* pairs = weights + run * RUN / EACH * (LANES / 2);
            const Item* later = soon.piece(RUN);
            mix_run<WHOLE>(pairs, tile.runs[run] + offset, later, keys - run * RUN, sums);
        }
        for (int row = 0; row < ROWS; ++row)
            for (int v = 0; v < 2; ++v) store(mixed + row * width + v * LANES, sums[row][v]);
    }

    // Not unrolled: what is fetched would be asked for all at once.
    template <bool WHOLE>
    inline __attribute__((always_inline)) void mix_run(const uint32_t* pairs,
                                                       const uint16_t* one,
                                                       const Item* later, long keys,
                                                       Floats (&sums)[ROWS][2]) {
        for (long key = 0; key < RUN; key += 2, one += 2 * width) {
            __builtin_prefetch(later + key * 32, 0, NEARNESS);
            __builtin_prefetch(later + key * 32 + 32, 0, NEARNESS);
            if (!WHOLE && key >= keys) continue;
            const uint16_t* two = WHOLE || key + 1 < keys ? one + width : one;  // behind: weighs 0
            const __m512i a = (__m512i)load<Words>(one), b = (__m512i)load<Words>(two);
            const __m512bh low = (__m512bh)_mm512_unpacklo_epi16(a, b);
            const __m512bh high = (__m512bh)_mm512_unpackhi_epi16(a, b);
            const uint32_t* pair = pairs + key / EACH * (LANES / 2) + key % EACH / 2;
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; ++row) {
                const __m512bh weight = (__m512bh)_mm512_set1_epi32((int)pair[row * EACH / 2]);
                sums[row][0] = (Floats)_mm512_dpbf16_ps((__m512)sums[row][0], weight, low);
                sums[row][1] = (Floats)_mm512_dpbf16_ps((__m512)sums[row][1], weight, high);
            }
        }
    }

    // Numbers in their order, maxima as natural exponents.
    void finish(Head& head) {
        constexpr Ints low = {0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23};
        constexpr Ints high = {8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31};
        const Running& running = head.running;
        float* end = running.mixed + ROWS * width;
        for (float* at = running.mixed; at < end; at += 2 * LANES) {
            Floats one = load<Floats>(at), two = load<Floats>(at + LANES);
            store(at, __builtin_shuffle(one, two, low));
            store(at + LANES, __builtin_shuffle(one, two, high));
        }
        Floats total = Row::fold_rows(head.total, [](Floats a, Floats b) { return a + b; });
        for (int row = 0; row < ROWS; ++row) {
            running.most[row] = head.most[row * EACH] / LOG2_E;
            running.total[row] = total[row * EACH];
        }
    }
};

template <class Kept, int ROWS = 1>
void attend_few(const Plan& plan, const Call& call, const Group& group, const Task& task,
                const Group& after, const Task& next, Running running) {
    if constexpr (ROWS < MOST_FEW)
        if (group.tokens * (plan.heads / plan.kv_heads) > ROWS)
            return attend_few<Kept, ROWS + 1>(plan, call, group, task, after, next, running);
    typedef Few<ROWS, Kept> Own;
    static thread_local std::vector<Words> scratch, copies;
    scratch.resize(std::max((long)scratch.size(), Own::scratch(plan) * group.heads / LANES));
    const long copied = FewTiles<Kept>::copied(plan, group.heads) / (2 * LANES);
    copies.resize(std::max((long)copies.size(), copied));
    Own(plan, call, group, running, (uint32_t*)scratch.data(), (uint16_t*)copies.data())
        .attend(task, after, next);
}

}  // namespace pd

#endif
