// Vectors of sixteen lanes, and the three number formats that weights and KV come in.
//
// Written with the compiler's vector extensions, so that it compiles on any CPU; what AVX-512
// has instructions of its own for is used where the compiler says that they are there.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512BF16__) && defined(__AVX512BW__)
#include <immintrin.h>
#define PD_PAIRS 1
#endif
#if defined(__AVX512VNNI__) && defined(PD_PAIRS)
#define PD_QUADS 1
#endif
#if defined(__AMX_BF16__) && defined(PD_PAIRS) && defined(__linux__)
#define PD_TILES 1
#endif

namespace pd {

constexpr long LANES = 16;

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef uint16_t Shorts __attribute__((vector_size(64)));
typedef _Float16 Float16s __attribute__((vector_size(32)));

template <class V>
inline V load(const void* at) {
    V made;
    std::memcpy(&made, at, sizeof made);
    return made;
}

template <class V>
inline void store(void* at, V value) {
    std::memcpy(at, &value, sizeof value);
}

// Threads that so many numbers keep busy.
inline long useful(long numbers, long threads) {
    constexpr long WORTH_A_THREAD = 1 << 15;
    long most = numbers / WORTH_A_THREAD + 1;
    return threads < most ? threads : most;
}

inline Floats splat(float one) { return Floats{} + one; }
inline Ints counting() { return Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

// The second where one is no number.
inline Floats larger(Floats a, Floats b) {
#ifdef PD_PAIRS
    return (Floats)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return a > b ? a : b;
#endif
}

// Whether any of the first is larger than its neighbour in the second.
inline bool any_larger(Floats a, Floats b) {
#ifdef PD_PAIRS
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
#else
    Ints larger = a > b;
    bool any = false;
    for (long i = 0; i < LANES; ++i) any |= larger[i] != 0;
    return any;
#endif
}

// Half of the lanes onto the other half, four times.
template <class Fold>
inline float fold(Floats of, Fold both) {
    constexpr Ints by8 = {8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7};
    constexpr Ints by4 = {4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11};
    constexpr Ints by2 = {2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13};
    constexpr Ints by1 = {1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14};
    of = both(of, __builtin_shuffle(of, by8));
    of = both(of, __builtin_shuffle(of, by4));
    of = both(of, __builtin_shuffle(of, by2));
    of = both(of, __builtin_shuffle(of, by1));
    return of[0];
}

inline float sum(Floats of) {
    return fold(of, [](Floats a, Floats b) { return a + b; });
}

inline float largest(Floats of) { return fold(of, larger); }

// Formats: how sixteen numbers are read and written. Rounding is to nearest, ties to even.
struct Float32 {
    typedef float Item;
    static Floats read(const Item* at) { return load<Floats>(at); }
    static void write(Item* at, Floats value) { store(at, value); }
};

struct Float16 {
    typedef _Float16 Item;
    static Floats read(const Item* at) {
        return __builtin_convertvector(load<Float16s>(at), Floats);
    }
    static void write(Item* at, Floats value) {
        store(at, __builtin_convertvector(value, Float16s));
    }
};

inline Halves round_to_bfloat16(Floats value) {
#ifdef PD_PAIRS
    return (Halves)_mm512_cvtneps_pbh((__m512)value);
#else
    Words bits = (Words)value;
    Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    Words quiet = (bits >> 16) | 0x40u;
    return __builtin_convertvector(value == value ? rounded : quiet, Halves);
#endif
}

// Of a number that bfloat16 has.
inline uint16_t bfloat16_bits(float one) {
    uint32_t bits;
    std::memcpy(&bits, &one, sizeof bits);
    return (uint16_t)(bits >> 16);
}

// Words of two bfloat16 each, the first below the second.
inline Words pair_up(Floats first, Floats second) {
#ifdef PD_PAIRS
    constexpr Shorts order = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                              8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    Shorts both = (Shorts)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    return (Words)__builtin_shuffle(both, order);
#else
    return __builtin_convertvector(round_to_bfloat16(first), Words) |
           __builtin_convertvector(round_to_bfloat16(second), Words) << 16;
#endif
}

struct BFloat16 {
    typedef uint16_t Item;
    static Floats read(const Item* at) {
        return (Floats)(__builtin_convertvector(load<Halves>(at), Words) << 16);
    }
    static void write(Item* at, Floats value) { store(at, round_to_bfloat16(value)); }
};

// The first `count` < LANES numbers; the rest is zero, or left alone.
template <class Format>
inline Floats read_some(const typename Format::Item* at, long count) {
    typename Format::Item some[LANES] = {};
    std::memcpy(some, at, count * sizeof some[0]);
    return Format::read(some);
}

template <class Format>
inline void write_some(typename Format::Item* at, Floats value, long count) {
    typename Format::Item some[LANES];
    Format::write(some, value);
    std::memcpy(at, some, count * sizeof some[0]);
}

// Of so many numbers that are left, a vector, or all.
template <class Format>
inline Floats read_up_to(const typename Format::Item* at, long left) {
    return left >= LANES ? Format::read(at) : read_some<Format>(at, left);
}

template <class Format>
inline void write_up_to(typename Format::Item* at, Floats value, long left) {
    left >= LANES ? Format::write(at, value) : write_some<Format>(at, value, left);
}

// e^x by 2^n times a polynomial on half an octave to either side (Cephes); within 2 ulp.
inline Floats exp_series(Floats rest) {
    Floats series = splat(1.9875691500e-4f);
    series = series * rest + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    return series * rest * rest + rest + 1.0f;
}

inline Floats exp(Floats x) {
#ifdef PD_PAIRS
    x = larger(splat(-200.0f), x);  // zero all the same, and the series stays finite
    Floats octave = (Floats)_mm512_roundscale_ps((__m512)(x * 1.44269504088896341f), 8);
    Floats rest = x - octave * 0.693359375f + octave * 2.12194440e-4f;
    return (Floats)_mm512_scalef_ps((__m512)exp_series(rest), (__m512)octave);
#else
    const Floats low = splat(-87.0f), high = splat(88.0f), endless = splat(__builtin_inff());
    Floats inside = x < low ? low : x > high ? high : x;
    Floats turns = inside * 1.44269504088896341f + 12582912.0f;  // rounds: 1.5 * 2^23
    Ints octave = (Ints)turns - 0x4b400000;
    turns = turns - 12582912.0f;
    Floats rest = inside - turns * 0.693359375f + turns * 2.12194440e-4f;
    Floats scaled = exp_series(rest) * (Floats)((octave + 127) << 23);
    return x < low ? Floats{} : x > high ? endless : x != x ? x : scaled;
#endif
}

// The natural logarithm of what is normal and above zero (Cephes); within 2 ulp.
inline Floats log(Floats x) {
    const Words bits = (Words)x;
    Ints octave = (Ints)(bits >> 23) - 126;
    Floats part = (Floats)((bits & 0x7fffffu) | 0x3f000000u);  // 0.5 to 1
    const Ints low = part < 0.707106781186547524f;
    part = low ? part + part : part;
    const Floats octaves = __builtin_convertvector(octave + low, Floats);  // low: -1
    const Floats rest = part - 1.0f;
    Floats series = splat(7.0376836292e-2f);
    series = series * rest - 1.1514610310e-1f;
    series = series * rest + 1.1676998740e-1f;
    series = series * rest - 1.2420140846e-1f;
    series = series * rest + 1.4249322787e-1f;
    series = series * rest - 1.6668057665e-1f;
    series = series * rest + 2.0000714765e-1f;
    series = series * rest - 2.4999993993e-1f;
    series = series * rest + 3.3333331174e-1f;
    series = series * rest * rest * rest - octaves * 2.12194440e-4f - rest * rest * 0.5f;
    return rest + series + octaves * 0.693359375f;
}

constexpr float LOG2_E = 1.44269504088896341f;

#ifdef PD_PAIRS
// 2^x within 4e-6 of itself, for what becomes bfloat16: a polynomial through the values at the
// Chebyshev nodes of half an octave to either side.
inline Floats exp2_short(Floats x) {
    Floats octave = (Floats)_mm512_roundscale_ps((__m512)x, 8), rest = x - octave;
    Floats series = splat(9.66636852e-3f);
    series = series * rest + 5.59219758e-2f;
    series = series * rest + 2.40223490e-1f;
    series = series * rest + 6.93121045e-1f;
    series = series * rest + 1.0f;
    return (Floats)_mm512_scalef_ps((__m512)series, (__m512)octave);
}
#endif

inline Floats tanh(Floats x) { return 1.0f - 2.0f / (exp(x + x) + 1.0f); }

// Rows of sixteen words become columns.
inline void transpose(Words (&rows)[LANES]) {
    Words half[LANES];
    constexpr Words low1 = {0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29};
    constexpr Words high1 = {2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31};
    constexpr Words low2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
    constexpr Words high2 = {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31};
    constexpr Words even = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
    constexpr Words odd = {4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31};
    for (long i = 0; i < LANES; i += 2) {
        half[i] = __builtin_shuffle(rows[i], rows[i + 1], low1);
        half[i + 1] = __builtin_shuffle(rows[i], rows[i + 1], high1);
    }
    for (long i = 0; i < LANES; i += 4)
        for (long j = 0; j < 2; ++j) {
            rows[i + 2 * j] = __builtin_shuffle(half[i + j], half[i + j + 2], low2);
            rows[i + 2 * j + 1] = __builtin_shuffle(half[i + j], half[i + j + 2], high2);
        }
    // rows[4g + c] has, in each quarter q, column 4q + c of rows 4g .. 4g + 3
    for (long c = 0; c < 4; ++c)
        for (long pair = 0; pair < 2; ++pair) {
            Words first = rows[8 * pair + c], second = rows[8 * pair + 4 + c];
            half[8 * pair + c] = __builtin_shuffle(first, second, even);
            half[8 * pair + 4 + c] = __builtin_shuffle(first, second, odd);
        }
    for (long c = 0; c < 4; ++c) {
        rows[c] = __builtin_shuffle(half[c], half[8 + c], even);
        rows[8 + c] = __builtin_shuffle(half[c], half[8 + c], odd);
        rows[4 + c] = __builtin_shuffle(half[4 + c], half[12 + c], even);
        rows[12 + c] = __builtin_shuffle(half[4 + c], half[12 + c], odd);
    }
}

}  // namespace pd
