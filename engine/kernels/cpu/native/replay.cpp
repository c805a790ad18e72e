// Calls in their order, each a pd::Again and then its arguments.
#include "again.hpp"

extern "C" void pd_replay(const int64_t* words, int64_t count) {
    for (const int64_t* end = words + count; words < end;)
        words = ((pd::Again)words[0])(words + 1);
}
