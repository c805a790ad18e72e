// Writing keys and values to their rows of KV memory: as they are, or rounded to fp8.
#include "again.hpp"
#include "fp8.hpp"

extern "C" void pd_turn(void* heads, const void* cosines, const void* sines, int64_t tokens,
                        int64_t count, int64_t width, int64_t stride, int64_t table_stride,
                        int64_t format, int64_t threads);

// Heads of `width` numbers in a batch's rows, `stride` numbers between tokens.
struct pd_heads {
    char* at;
    int64_t count, stride;
};

namespace pd {
namespace {

// A call of memcpy for each row would take longer than the row.
void copy(char* to, const char* from, long bytes) {
    for (; bytes >= 64; bytes -= 64, to += 64, from += 64) store(to, load<Words>(from));
    if (bytes) std::memcpy(to, from, bytes);
}

// Each head of each token to the row that `slots` [tokens, heads] says.
template <class Item, class Write>
void write_rows(const pd_heads& heads, const int64_t* slots, long tokens, long width, long threads,
                Write write) {
    threads = useful(tokens * heads.count * width * sizeof(Item), threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long token = 0; token < tokens; ++token)
        for (long head = 0; head < heads.count; ++head)
            write(slots[token * heads.count + head] * width,
                  (const Item*)heads.at + token * heads.stride + head * width);
}

template <class Format>
void write_as(const pd_heads& heads, char* memory, const int64_t* slots, long tokens, long width,
              long rounded, long threads) {
    typedef typename Format::Item Item;
    if (rounded)
        write_rows<Item>(heads, slots, tokens, width, threads, [=](long at, const Item* row) {
            narrow<Format>(row, (uint8_t*)memory + at, width);
        });
    else
        write_rows<Item>(heads, slots, tokens, width, threads, [=](long at, const Item* row) {
            copy((char*)((Item*)memory + at), (const char*)row, width * sizeof(Item));
        });
}

}  // namespace
}  // namespace pd

// `rounded`: memory is fp8.
extern "C" void pd_write(const pd_heads* heads, char* memory, const int64_t* slots,
                         int64_t tokens, int64_t width, int64_t format, int64_t rounded,
                         int64_t threads) {
    switch (format) {
        case 0:
            return pd::write_as<pd::Float32>(*heads, memory, slots, tokens, width, rounded,
                                             threads);
        case 1:
            return pd::write_as<pd::BFloat16>(*heads, memory, slots, tokens, width, rounded,
                                              threads);
        case 2:
            return pd::write_as<pd::Float16>(*heads, memory, slots, tokens, width, rounded,
                                             threads);
    }
}

PD_AGAIN(pd_write)

// Turn queries and keys in place, and write keys and values; without cosines nothing turns.
// Heads that lie behind one another are turned in one pass.
extern "C" void pd_turn_and_write(const pd_heads* parts, const void* cosines, const void* sines,
                                  int64_t table_stride, char* memory, const int64_t* slots,
                                  int64_t tokens, int64_t width, int64_t item, int64_t format,
                                  int64_t rounded, int64_t threads) {
    const pd_heads &queries = parts[0], &keys = parts[1];
    if (cosines) {
        bool joined = queries.stride == keys.stride &&
                      queries.at + queries.count * width * item == keys.at;
        pd_turn(queries.at, cosines, sines, tokens, queries.count + (joined ? keys.count : 0),
                width, queries.stride, table_stride, format, threads);
        if (!joined)
            pd_turn(keys.at, cosines, sines, tokens, keys.count, width, keys.stride,
                    table_stride, format, threads);
    }
    for (int part = 1; part < 3; ++part, slots += tokens * keys.count)
        pd_write(parts + part, memory, slots, tokens, width, format, rounded, threads);
}

PD_AGAIN(pd_turn_and_write)
