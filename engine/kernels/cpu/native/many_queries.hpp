// Attention of any queries that share their keys, of all formats, a tile of keys at a time: their
// words, from where they lie, times all queries, which are columns; a running maximum for each
// column; and the weights of each query times the values. It is for rows that are many, as in the
// chunk of a prompt.
#pragma once

#include <vector>

#include "many_rows.hpp"
#include "tile.hpp"

namespace pd {

struct Scratch {
    std::vector<uint32_t> words;
    std::vector<const void*> lines;
    uint32_t *queries, *keys, *values, *weights;  // [deep][rows], [TILE][deep], [..][wide], ..
    float *scores, *most, *totals;                // [TILE][rows], [rows], [rows]
    int32_t* positions;                           // [rows]: which token of its sequence

    // `row_bytes` of a key and a value; the room behind is what one product may skip.
    void fit(long rows, long deep, long wide, long row_bytes) {
        long most_lines = TILE * (row_bytes / 64 + 4) + LINES_OF_A_STEP * std::max(deep, TILE);
        if ((long)lines.size() < most_lines) lines.resize(most_lines);
        long sizes[] = {rows * deep, TILE * deep, TILE * wide, rows * TILE, rows * TILE, rows,
                        rows, rows};
        long all = LANES;
        for (long one : sizes) all += round_up(one);
        if ((long)words.size() < all) words.assign(all, 0);
        uint32_t *at = words.data(), *parts[8];
        at += (64 - (uintptr_t)at % 64) % 64 / 4;
        for (int i = 0; i < 8; at += round_up(sizes[i++])) parts[i] = at;
        queries = parts[0], keys = parts[1], values = parts[2], weights = parts[3];
        scores = (float*)parts[4], most = (float*)parts[5], totals = (float*)parts[6];
        positions = (int32_t*)parts[7];
    }
};

// WHOLE: rows are full vectors, as with all head sizes in use. KV is Kept in the format of the
// queries, or in fp8.
template <class Format, class Kind, bool WHOLE, class Kept = Format>
class Many {
    typedef typename Format::Item Item;
    static constexpr bool AS_IS = sizeof(Item) * Kind::UNIT == 4;  // words need no conversion

    const Plan& plan;
    const Call& call;
    const ManyRows<Format, Kept> rows_in;
    const long sharing, width, value_width;
    const long deep, wide;  // words of a key, floats of a value, in whole vectors

   public:
    Many(const Plan& plan, const Call& call)
        : plan(plan),
          call(call),
          rows_in{plan, call},
          sharing(plan.heads / plan.kv_heads),
          width(plan.width),
          value_width(plan.value_width),
          deep(round_up((width + Kind::UNIT - 1) / Kind::UNIT)),
          wide(round_up(value_width)) {}

    void attend(const Group& group, const Task& task, Running running) const {
        static thread_local Scratch scratch;
        const long rows = group.tokens * sharing, columns = round_up(rows);
        scratch.fit(columns, deep, wide, 2 * width * sizeof(typename Kept::Item));
        std::fill(scratch.most, scratch.most + columns, NOTHING);
        std::fill(scratch.totals, scratch.totals + columns, 0.0f);
        std::fill(running.mixed, running.mixed + rows * wide, 0.0f);
        pack_queries(group, columns, scratch.queries);
        for (long row = 0; row < columns; ++row)
            scratch.positions[row] = plan.spans[group.span].start + group.token + row / sharing;
        Rows<typename Kept::Item> rows_of[2];
        Soon soon{scratch.lines.data(), scratch.lines.data()};
        rows_in.find(group, task.from, task.to, rows_of[0], soon);
        soon.fetch_rest();
        for (long key = task.from, turn = 0; key < task.to; key += TILE, turn ^= 1) {
            soon = {scratch.lines.data(), scratch.lines.data()};
            if (key + TILE < task.to)
                rows_in.find(group, key + TILE, task.to, rows_of[turn ^ 1], soon);
            Rows<Item> copies;
            const Rows<Item>& some = rows_in.as_computed(rows_of[turn], copies);
            const long units = (some.count + Kind::UNIT - 1) / Kind::UNIT;
            score(some, key, columns, scratch, soon);
            for (long column = 0; column < columns; column += LANES)
                weigh(group, column, key, some.count, scratch, running);
            pack_values(some.keys, units * Kind::UNIT, scratch.values);
            multiply<Kind>({scratch.weights, 1, scratch.values, wide, running.mixed, wide, units,
                            true, 0, &soon, columns},
                           rows, wide);
            soon.fetch_rest();
        }
        for (long row = 0; row < rows; ++row) {
            running.most[row] = scratch.most[row] / Kind::OCTAVE;
            running.total[row] = scratch.totals[row];
        }
    }

   private:
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

    // Queries become columns, with zeros for those that are not there.
    void pack_queries(const Group& group, long columns, uint32_t* packed) const {
        const Item* from = (const Item*)call.queries + group.head * sharing * width +
                           (plan.spans[group.span].row + group.token) * call.query_stride;
        for (long column = 0; column < columns; column += LANES)
            for (long word = 0; word < deep; word += LANES) {
                Words some[LANES] = {};
                for (long i = 0, row = column; i < LANES && row < group.tokens * sharing;
                     ++i, ++row)
                    some[i] = words(from + row / sharing * call.query_stride +
                                        row % sharing * width,
                                    word, width);
                transpose(some);
                for (long i = 0; i < LANES; ++i)
                    store(packed + (word + i) * columns + column, some[i]);
            }
    }

    // Scores [keys][columns]: keys that lie behind one another at once, if they can be read as
    // they are; else from a copy.
    void score(const Rows<Item>& some, long key, long columns, Scratch& scratch,
               Soon& soon) const {
        Product product{nullptr, 0, scratch.queries, columns, scratch.scores, columns,
                        (width + Kind::UNIT - 1) / Kind::UNIT, false, 0, &soon};
        if (AS_IS && width % Kind::UNIT == 0) {
            product.left_stride = width / Kind::UNIT;
            for (long at = 0, count; at < some.count; at += count) {
                count = std::min(some.count - at, plan.block_size - (key + at) % plan.block_size);
                product.left = (const uint32_t*)some.keys[at];
                product.sums = scratch.scores + at * columns;
                multiply<Kind>(product, count, columns);
            }
        } else {
            for (long at = 0; at < some.count; ++at)
                for (long word = 0; word < deep; word += LANES)
                    store(scratch.keys + at * deep + word, words(some.keys[at], word, width));
            product.left = scratch.keys, product.left_stride = deep;
            multiply<Kind>(product, some.count, columns);
        }
    }

    void pack_values(const Item* const* keys, long columns, uint32_t* packed) const {
        const long wide = this->wide, size = value_width, offset = rows_in.value_offset();
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

    // Scores of sixteen rows become weights, relative to the largest score of each so far.
    void weigh(const Group& group, long column, long key, long count, Scratch& scratch,
               Running& running) const {
        const long columns = round_up(group.tokens * sharing);
        float* scores = scratch.scores + column;
        float factor = call.scale * Kind::OCTAVE;
        const int32_t* positions = scratch.positions + column;
        if (call.softcap > 0 || !all_seen(positions, key, count)) {
            const Ints position = load<Ints>(positions);
            for (long k = 0; k < count; ++k) {
                Floats score = cap(load<Floats>(scores + k * columns) * factor);
                store(scores + k * columns, hide(position, key + k, score));
            }
            factor = 1.0f;
        }
        const Floats now = largest_of(scores, columns, count, factor, scratch.most + column);
        if (any_larger(now, load<Floats>(scratch.most + column)))
            shrink(group, column, now, scratch, running);
        Floats total = load<Floats>(scratch.totals + column);
        for (long k = 0; k < count; k += Kind::UNIT) {
            uint32_t* weights = scratch.weights + k / Kind::UNIT * columns + column;
            Floats one = Kind::power(load<Floats>(scores + k * columns) * factor - now);
            total += one;
            if constexpr (Kind::UNIT == 1) {
                store(weights, one);
            } else {
                Floats two = {};
                if (k + 1 < count)
                    two = Kind::power(load<Floats>(scores + (k + 1) * columns) * factor - now);
                total += two;
                store(weights, pair_up(one, two));
            }
        }
        store(scratch.totals + column, total);
    }

    // In four runs that do not wait for one another.
    static Floats largest_of(const float* scores, long columns, long count, float factor,
                             const float* before) {
        Floats most[4];
        for (Floats& one : most) one = load<Floats>(before);
        long k = 0;
        for (; k + 4 <= count; k += 4)
            for (long i = 0; i < 4; ++i)
                most[i] = larger(most[i], load<Floats>(scores + (k + i) * columns) * factor);
        for (; k < count; ++k)
            most[0] = larger(most[0], load<Floats>(scores + k * columns) * factor);
        return larger(larger(most[0], most[1]), larger(most[2], most[3]));
    }

    bool all_seen(const int32_t* positions, long key, long count) const {
        return key + count - 1 <= positions[0] &&
               (!call.window || key > positions[LANES - 1] - call.window);
    }

    Floats hide(Ints position, long key, Floats score) const {
        Ints seen = position >= (int)key;
        if (call.window) seen &= position < (int)(key + call.window);
        return seen ? score : splat(2 * NOTHING);
    }

    Floats cap(Floats score) const {
        const float most = call.softcap * Kind::OCTAVE;
        return call.softcap > 0 ? tanh(score / most) * most : score;
    }

    // Larger scores were found: what there is weighs less.
    void shrink(const Group& group, long column, Floats now, Scratch& scratch,
                Running& running) const {
        const Floats factor = Kind::power(load<Floats>(scratch.most + column) - now);
        store(scratch.most + column, now);
        store(scratch.totals + column, load<Floats>(scratch.totals + column) * factor);
        const long last = std::min(column + LANES, group.tokens * sharing);
        for (long row = column; row < last; ++row) {
            float* mixed = running.mixed + row * wide;
            for (long at = 0; at < wide; at += LANES)
                store(mixed + at, load<Floats>(mixed + at) * factor[row - column]);
        }
    }
};

}  // namespace pd
