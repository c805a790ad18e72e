// What attention of a few queries reads, and how it is fetched ahead.
#pragma once

#include "tasks.hpp"

#ifndef PD_FIRST_CACHE
#define PD_FIRST_CACHE 48
#endif

namespace pd {

constexpr long RUN = 16;  // keys behind one another
// Two tiles of 32 keys have 32 KiB. They do not fit into a first cache of that size beside what is
// computed with them: tiles are smaller then, and what is fetched ahead waits in the second cache.
constexpr bool SMALL_CACHE = PD_FIRST_CACHE < 48;
constexpr int NEARNESS = SMALL_CACHE ? 2 : 3;

// Keys and values of a tile: where its runs lie for the first of `heads` heads.
template <class Item>
struct FewTile {
    static constexpr long KEYS = SMALL_CACHE ? 16 : 32, RUNS = KEYS / RUN;

    const Item* runs[RUNS];
    long head_stride, value_offset;  // of one of its runs
};

// A tile is fetched in the order in which it lies in memory, so that that is read in long
// stretches, whatever is computed meanwhile: of each run the keys of all heads, then the values.
// Steps are lines of bfloat16, and halves of lines of fp8, each of which is thus asked for twice:
// what is computed has as many steps.
template <class Item>
class Fetching {
    static constexpr long STEP = 32;

    const FewTile<Item> tile;
    const long heads, steps;
    long head = 0, part = 0, left;  // steps of the stretch that is fetched
    const Item* at;

   public:
    Fetching(const FewTile<Item>& tile, const Plan& plan, long heads)
        : tile(tile),
          heads(heads),
          steps(RUN * plan.width / STEP),
          left(steps),
          at(tile.runs[0]) {}

    // The next `count` steps, which are a part of one stretch.
    const Item* piece(long count) {
        if (!left) enter();
        const Item* piece = at;
        at += count * STEP;
        left -= count;
        return piece;
    }

   private:
    void enter() {
        if (++head == heads) head = 0, ++part;
        const long run = part / 2 % FewTile<Item>::RUNS;
        at = tile.runs[run] + part % 2 * tile.value_offset + head * tile.head_stride;
        left = steps;
    }
};

}  // namespace pd
