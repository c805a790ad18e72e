// KV in numbers of one byte, float8_e4m3fn: a sign, four bits of exponent, three of mantissa; no
// infinity, and one number that is none. All of them are numbers of the other formats, too.
#pragma once

#include <type_traits>

#include "numbers.hpp"

namespace pd {

typedef uint8_t Bytes __attribute__((vector_size(16)));

struct E4m3 {
    typedef uint8_t Item;
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

#ifdef PD_PAIRS
// Thirty-two of them as bfloat16; those without a leading one come from a table.
inline Words to_bfloat16(const uint8_t* at) {
    alignas(64) static constexpr uint16_t SMALL[32] = {
        0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60, 0, 0x3b00, 0x3b80,
        0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60, 0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20,
        0x3c40, 0x3c60, 0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60};
    const __m512i bits = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)at));
    const __m512i size = _mm512_and_si512(bits, _mm512_set1_epi16(0x7f));
    __m512i number = _mm512_add_epi16(_mm512_slli_epi16(size, 4),
                                      _mm512_set1_epi16(E4m3::BIAS << 7));
    const __mmask32 small = _mm512_testn_epi16_mask(size, _mm512_set1_epi16(0x78));
    number = _mm512_mask_permutexvar_epi16(number, small, bits, _mm512_load_si512(SMALL));
    const __mmask32 none = _mm512_cmpeq_epi16_mask(size, _mm512_set1_epi16(0x7f));
    number = _mm512_mask_mov_epi16(number, none, _mm512_set1_epi16(0x7fc0));
    const __m512i sign = _mm512_slli_epi16(_mm512_xor_si512(bits, size), 8);
    return (Words)_mm512_or_si512(number, sign);
}
#endif

// `count` numbers in another format.
template <class Format>
inline void widen(const uint8_t* from, typename Format::Item* to, long count) {
#ifdef PD_PAIRS
    if constexpr (std::is_same_v<Format, BFloat16>)
        for (; count >= 2 * LANES; count -= 2 * LANES, from += 2 * LANES, to += 2 * LANES)
            store(to, to_bfloat16(from));
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
