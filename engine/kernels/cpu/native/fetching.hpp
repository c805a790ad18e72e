// What attention of a few queries reads, and how it is fetched ahead.
#pragma once

#include "tasks.hpp"

namespace pd {

constexpr long RUN = 16;  // keys behind one another

// Keys and values of a tile: where its runs lie for the first of `heads` heads.
template <class Item>
struct FewTile {
    static constexpr long KEYS = 32, RUNS = KEYS / RUN;

    const Item* runs[RUNS];
    long head_stride, value_offset;  // of one of its runs
};

// A tile is fetched in the order in which it lies in memory, so that that is read in long
// stretches, whatever is computed meanwhile: of each run the keys of all heads, then the values.
template <class Item>
class Fetching {
    static constexpr long LINE = 64 / sizeof(Item);

    const FewTile<Item> tile;
    const long heads, lines;
    long head = 0, part = 0, left;  // lines of the stretch that is fetched
    const Item* at;

   public:
    Fetching(const FewTile<Item>& tile, const Plan& plan, long heads)
        : tile(tile),
          heads(heads),
          lines(RUN * plan.width / LINE),
          left(lines),
          at(tile.runs[0]) {}

    // The next `count` lines, which are a part of one stretch.
    const Item* piece(long count) {
        if (!left) enter();
        const Item* piece = at;
        at += count * LINE;
        left -= count;
        return piece;
    }

   private:
    void enter() {
        if (++head == heads) head = 0, ++part;
        const long run = part / 2 % FewTile<Item>::RUNS;
        at = tile.runs[run] + part % 2 * tile.value_offset + head * tile.head_stride;
        left = lines;
    }
};

}  // namespace pd
