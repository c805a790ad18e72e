// Calls that were made before, made again from words of 64 bits: a step without its caller.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace pd {

// Makes a call from its arguments, and gives back where the next call's words begin.
typedef const int64_t* (*Again)(const int64_t* words);

template <class Argument>
Argument argument(int64_t word) {
    Argument made;
    std::memcpy(&made, &word, sizeof made);
    return made;
}

template <class... Arguments, size_t... I>
const int64_t* call(void (*function)(Arguments...), const int64_t* words,
                    std::index_sequence<I...>) {
    function(argument<Arguments>(words[I])...);
    return words + sizeof...(Arguments);
}

template <class... Arguments>
const int64_t* again(void (*function)(Arguments...), const int64_t* words) {
    return call(function, words, std::index_sequence_for<Arguments...>{});
}

}  // namespace pd

#define PD_AGAIN(function)                                              \
    extern "C" const int64_t* function##_again(const int64_t* words) { \
        return pd::again(function, words);                              \
    }
