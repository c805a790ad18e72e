// Rows spread over the lanes of a vector: each has as many lanes, one row behind the other.
#pragma once

#include "numbers.hpp"

#ifdef PD_PAIRS

namespace pd {

// EACH lanes belong to a row: as many words of it, or its scores of as many keys.
template <int EACH>
struct Lanes {
    static Words broadcast(const uint16_t* at) {
        int64_t two;
        std::memcpy(&two, at, sizeof two);
        if constexpr (EACH == 2) return (Words)_mm512_set1_epi64(two);
        if constexpr (EACH == 4)
            return (Words)_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)at));
        if constexpr (EACH == 8)
            return (Words)_mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)at));
        if constexpr (EACH == 16) return load<Words>(at);
    }

    // Sums of neighbouring lanes, and of neighbouring quarters; of both, one behind the other.
    static Floats halve(Floats a, Floats b) {
        return (Floats)_mm512_shuffle_ps((__m512)a, (__m512)b, 0x88) +
               (Floats)_mm512_shuffle_ps((__m512)a, (__m512)b, 0xdd);
    }
    static Floats halve_quarters(Floats a, Floats b) {
        return (Floats)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x88) +
               (Floats)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xdd);
    }

    // EACH keys, each with EACH sums for a row, become their scores.
    static Floats add_up(const Floats* of) {
        if constexpr (EACH == 2)
            return (Floats)_mm512_permute_ps((__m512)halve(of[0], of[1]), 0xd8);
        else
            return add_up_more(of);
    }
    static Floats add_up_more(const Floats* of) {
        Floats four[EACH / 4];
        for (int i = 0; i < EACH / 4; ++i, of += 4)
            four[i] = halve(halve(of[0], of[1]), halve(of[2], of[3]));
        if constexpr (EACH == 4) return four[0];
        if constexpr (EACH == 8) {
            __m512 rows = (__m512)halve_quarters(four[0], four[1]);
            return (Floats)_mm512_shuffle_f32x4(rows, rows, 0xd8);
        }
        if constexpr (EACH == 16)
            return halve_quarters(halve_quarters(four[0], four[1]),
                                  halve_quarters(four[2], four[3]));
    }

    // Every lane gets what `both` makes of all lanes of its row.
    template <class Both>
    static Floats fold_rows(Floats of, Both both) {
        of = both(of, (Floats)_mm512_permute_ps((__m512)of, 0xb1));
        if constexpr (EACH > 2) of = both(of, (Floats)_mm512_permute_ps((__m512)of, 0x4e));
        if constexpr (EACH > 4)
            of = both(of, (Floats)_mm512_shuffle_f32x4((__m512)of, (__m512)of, 0xb1));
        if constexpr (EACH > 8)
            of = both(of, (Floats)_mm512_shuffle_f32x4((__m512)of, (__m512)of, 0x4e));
        return of;
    }
};

}  // namespace pd

#endif
