// KV in numbers of one byte, float8_e4m3fn: a sign, four bits of exponent, three of mantissa; no
// infinity, and one number that is none. All of them are numbers of the other formats, too.
#pragma once

#include <type_traits>

#include "numbers.hpp"

namespace pd {

typedef uint8_t Bytes __attribute__((vector_size(16)));

struct E4m3 {
    typedef uint8_t Item;
    static constexpr long LINE = 64;  // of the cache
    static constexpr uint32_t NO_NUMBER = 0x7f, SHIFT = 20, BIAS = 120;  // to those of a float
    static constexpr float LARGEST = 448.0f, LEAST_NORMAL = 0x1p-6f;

    // Below LEAST_NORMAL there is no leading one: it is put there, and taken away again.
    static Floats read(const Item* at) {
        const Words bits = __builtin_convertvector(load<Bytes>(at), Words);
        const Words size = bits & 0x7fu, sign = (bits & 0x80u) << 24;
        const Floats normal = (Floats)((size << SHIFT) + (BIAS << 23));
        const Floats small = (Floats)((size << SHIFT) + ((BIAS + 1) << 23)) - LEAST_NORMAL;
        const Floats value = size < 8u ? small : normal;
        const Words number = (Words)value | sign;
        return (Floats)(size == NO_NUMBER ? number | 0x7fc00000u : number);
    }

    // To nearest, ties to even; what is larger than all becomes the largest.
    static void write(Item* at, Floats value) {
        constexpr float STEPS = 24576.0f;  // 1.5 * 2^14: floats of its size are 2^-9 apart
        const Words sign = (Words)value >> 24 & 0x80u;
        const Floats positive = (Floats)((Words)value & 0x7fffffffu);
        const Floats size = positive > LARGEST ? splat(LARGEST) : positive;
        const Words bits = (Words)size;
        const Words normal =
            ((bits + 0x7ffffu + ((bits >> SHIFT) & 1u)) >> SHIFT) - (BIAS << (23 - SHIFT));
        const Words small = (Words)(size + STEPS) & 0xfu;
        const Words number = size < LEAST_NORMAL ? small : normal;
        const Words rounded = value == value ? number : Words{} + NO_NUMBER;
        store(at, __builtin_convertvector(rounded | sign, Bytes));
    }
};

#ifdef __AVX512VBMI__
// The bytes of bfloat16 for each number without its sign.
struct BFloat16Bytes {
    alignas(64) uint8_t low[128], high[128];

    constexpr BFloat16Bytes() : low(), high() {
        for (uint32_t size = 0; size < 128; ++size) {
            const uint32_t number = size == E4m3::NO_NUMBER ? 0x7fc0 : of(size);
            low[size] = uint8_t(number), high[size] = uint8_t(number >> 8);
        }
    }

    // Numbers below 8 have no leading one: they are so many times 2^-9.
    static constexpr uint32_t of(uint32_t size) {
        if (size >= 8 || !size) return size ? (size << 4) + (E4m3::BIAS << 7) : 0;
        uint32_t leading = 0;
        while (size >> (leading + 1)) ++leading;
        return (leading + 127 - 9) << 7 | (size << (7 - leading) & 0x7fu);
    }
};

// A line of them as bfloat16. Bytes are woven within each 16 of a vector, hence the order.
inline void widen_line(const uint8_t* from, uint16_t* to) {
    static constexpr BFloat16Bytes BYTES;
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const __m512i bits = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(from));
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(BYTES.low), bits,
                                                 _mm512_load_si512(BYTES.low + 64));
    __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(BYTES.high), bits,
                                            _mm512_load_si512(BYTES.high + 64));
    high = _mm512_or_si512(high, _mm512_and_si512(bits, _mm512_set1_epi8(-128)));
    _mm512_storeu_si512(to, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(to + 32, _mm512_unpackhi_epi8(low, high));
}
#endif

// `count` numbers in another format.
template <class Format>
inline void widen(const uint8_t* from, typename Format::Item* to, long count) {
#ifdef __AVX512VBMI__
    if constexpr (std::is_same_v<Format, BFloat16>)
        for (; count >= E4m3::LINE; count -= E4m3::LINE, from += E4m3::LINE, to += E4m3::LINE)
            widen_line(from, to);
#endif
    for (; count >= LANES; count -= LANES, from += LANES, to += LANES)
        Format::write(to, E4m3::read(from));
    if (count) write_some<Format>(to, read_some<E4m3>(from, count), count);
}

template <class Format>
inline void narrow(const typename Format::Item* from, uint8_t* to, long count) {
    for (; count >= LANES; count -= LANES, from += LANES, to += LANES)
        E4m3::write(to, Format::read(from));
    if (count) write_some<E4m3>(to, read_some<Format>(from, count), count);
}

}  // namespace pd
