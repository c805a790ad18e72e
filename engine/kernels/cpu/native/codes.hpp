// Weights of 4 and of 8 bits as they lie in memory, and what makes bfloat16 of them, exactly.
//
// Both lie in steps of two inputs by 64 outputs, [outputs / 64][depth / 2][STEP_WORDS] words of 16
// bits; word 2 i + h has numbers of input h. Unpacked, a step is VECTORS vectors of sixteen
// outputs, of which each word of 32 bits has both inputs.
#pragma once

#include "numbers.hpp"

#ifdef PD_PAIRS

namespace pd {

constexpr long VECTORS = 4, OUTPUTS_OF_A_BLOCK = VECTORS * LANES;

inline Shorts look_up(Shorts of, Shorts table) {  // by the lowest five bits of each word
    return (Shorts)_mm512_permutexvar_epi16((__m512i)of, (__m512i)table);
}

// Whole numbers -8 .. 7. Word 2 i + h has, from its lowest bits on, outputs i, i + 16, i + 32 and
// i + 48.
struct FourBits {
    static constexpr long STEP_WORDS = 32;
    // Words that are fetched before they are read. Not in kibibytes: what is fetched would then lie
    // in the same places of pages as what was just written, which holds reads up.
    static constexpr long AHEAD = 40 * STEP_WORDS;

    Shorts numbers;

    FourBits() {
        for (int i = 0; i < 2 * LANES; ++i) numbers[i] = bfloat16_bits((float)(i % 16 - 8));
    }
    void unpack(const uint16_t* packed, Words (&made)[VECTORS]) const {
        const Shorts some = load<Shorts>(packed);
        __builtin_prefetch(packed + AHEAD);
        for (int v = 0; v < VECTORS; ++v) made[v] = (Words)look_up(some >> 4 * v, numbers);
    }
};

// Numbers of 8 bits: e4m3 (Micikevicius et al. 2022, "FP8 formats for deep learning"), without
// those that are no numbers. A byte has, from its lowest bits on, the mantissa (3), the sign, the
// highest bit of the exponent, and its other bits: the lowest five find sign, mantissa and how the
// exponent of a bfloat16 begins, 120 or 128, and the others are how it ends. Word 2 i + h has
// outputs i and i + 16, and 32 words on i + 32 and i + 48.
struct EightBits {
    static constexpr long STEP_WORDS = 64;
    static constexpr long AHEAD = 20 * STEP_WORDS;

    Shorts normal, subnormal;

    EightBits() {
        for (int i = 0; i < 2 * LANES; ++i) {
            const float sign = i & 8 ? -1.0f : 1.0f, part = (float)(i & 7) / 8;
            normal[i] = bfloat16_bits(sign * (1 + part) * (i & 16 ? 2.0f : 1.0f / 128));
            subnormal[i] = bfloat16_bits(sign * part / 64);
        }
    }
    void unpack(const uint16_t* packed, Words (&made)[VECTORS]) const {
        for (int half = 0; half < VECTORS / 2; ++half, packed += STEP_WORDS / 2) {
            const Shorts some = load<Shorts>(packed);
            __builtin_prefetch(packed + AHEAD);
            made[2 * half] = number(some);
            made[2 * half + 1] = number(some >> 8);
        }
    }

   private:
    // Of the lower byte of each word.
    Words number(Shorts of) const {
        constexpr uint16_t EXPONENT = 0xf0, ITS_END = 0x380;
        const Shorts made = look_up(of, normal) | ((of << 2) & ITS_END);
        const __mmask32 small =
            _mm512_testn_epi16_mask((__m512i)of, _mm512_set1_epi16(EXPONENT));
        return (Words)_mm512_mask_permutexvar_epi16((__m512i)made, small, (__m512i)of,
                                                    (__m512i)subnormal);
    }
};

}  // namespace pd

#endif
