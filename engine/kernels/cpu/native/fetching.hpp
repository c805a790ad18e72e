// What attention of a few queries reads, and how it is fetched ahead.
#pragma once

#include "tasks.hpp"

namespace pd {

constexpr long RUN = 16;  // keys behind one another

// Keys and values of a tile: where its runs lie for the first of `heads` heads.
struct FewTile {
    static constexpr long KEYS = 32, RUNS = KEYS / RUN;

    const uint16_t* runs[RUNS];
};

// A tile is fetched in the order in which it lies in memory, so that that is read in long
// stretches, whatever is computed meanwhile: of each run the keys of all heads, then the values.
class Fetching {
    static constexpr long LINE = 32;  // items

    const FewTile tile;
    const long heads, lines, head_stride, value_offset;
    long head = 0, part = 0, left;  // lines of the stretch that is fetched
    const uint16_t* at;

   public:
    Fetching(const FewTile& tile, const Plan& plan, long heads)
        : tile(tile),
          heads(heads),
          lines(RUN * plan.width / LINE),
          head_stride(plan.block_size * plan.width),
          value_offset(plan.value_offset),
          left(lines),
          at(tile.runs[0]) {}

    // The next `count` lines, which are a part of one stretch.
    const uint16_t* piece(long count) {
        if (!left) enter();
        const uint16_t* piece = at;
        at += count * LINE;
        left -= count;
        return piece;
    }

   private:
    void enter() {
        if (++head == heads) head = 0, ++part;
        const long run = part / 2 % FewTile::RUNS;
        at = tile.runs[run] + part % 2 * value_offset + head * head_stride;
        left = lines;
    }
};

}  // namespace pd
