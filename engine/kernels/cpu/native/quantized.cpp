// Products with weights of 8 bits: whole numbers -127 .. 127, with a scale for each output.
// Inputs are brought to 8 bits, too, with a scale for each row (Dettmers et al. 2022,
// "LLM.int8()", its row-wise part). A weight lies in words of four inputs: [outputs / 64]
// [inputs / 4][64], padded with zeros. Sums are exact.
#include <cmath>
#include <vector>

#include "again.hpp"
#include "tile.hpp"

namespace pd {
namespace {

constexpr long BLOCK = 64, STEPS = 64, WORTH_A_THREAD = 1 << 17, FOUR = 4, MIDDLE = 128;

#ifdef PD_QUADS
struct Quads {
    static constexpr long UNIT = 4;
    static Floats multiply_add(Floats sum, uint32_t left, Floats right) {
        return (Floats)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32((int)left),
                                           (__m512i)right);
    }
};
#else
typedef Singles Quads;  // never called: see pd_quads
#endif

struct Weight {
    const uint32_t* packed;
    const float* scales;    // [outputs]
    const int32_t* middle;  // [outputs] what MIDDLE, which inputs have too much, adds up to
    const uint16_t* bias;
    int64_t outputs, inputs;
};

// A row as 0 .. 255 around MIDDLE, and the scale that takes it back.
float quantize(const uint16_t* row, long count, long words, uint8_t* target) {
    Floats most = {};
    for (long at = 0; at < count; at += LANES) {
        Floats some = count - at >= LANES ? BFloat16::read(row + at)
                                          : read_some<BFloat16>(row + at, count - at);
        most = larger(larger(some, -some), most);
    }
    float scale = largest(most) / 127.0f, back = scale > 0 ? 1.0f / scale : 0.0f;
    std::memset(target, MIDDLE, words * FOUR);
    for (long at = 0; at < count; at += LANES) {
        long left = count - at < LANES ? count - at : LANES;
        Floats some = left == LANES ? BFloat16::read(row + at)
                                    : read_some<BFloat16>(row + at, left);
        Floats moved = some * back + 12583040.0f;  // rounds: 1.5 * 2^23, and MIDDLE
        Words bits = (Words)moved & 0xffu;
        for (long i = 0; i < left; ++i) target[at + i] = (uint8_t)bits[i];
    }
    return scale;
}

void block(const Weight& weight, const uint32_t* rows_of, const float* row_scales,
           uint16_t* outputs, long rows, long index, float* sums) {
    long words = (weight.inputs + FOUR - 1) / FOUR;
    const uint32_t* packed = weight.packed + index * words * BLOCK;
    for (long step = 0; step < words; step += STEPS) {
        long some = words - step < STEPS ? words - step : STEPS;
        multiply<Quads>({rows_of + step, words, packed + step * BLOCK, BLOCK, sums, BLOCK, some,
                         step > 0, STEPS * BLOCK},
                        rows, BLOCK);
    }
    long first = index * BLOCK, count = weight.outputs - first;
    for (long row = 0; row < rows; ++row)
        for (long at = 0; at < BLOCK && at < count; at += LANES) {
            long left = count - at < LANES ? count - at : LANES, here = first + at;
            Ints exact = (Ints)load<Floats>(sums + row * BLOCK + at) -
                         load<Ints>(weight.middle + here);
            Floats value = __builtin_convertvector(exact, Floats) *
                           (load<Floats>(weight.scales + here) * row_scales[row]);
            uint16_t* target = outputs + row * weight.outputs + here;
            if (left == LANES) {
                if (weight.bias) value += BFloat16::read(weight.bias + here);
                BFloat16::write(target, value);
            } else {
                if (weight.bias) value += read_some<BFloat16>(weight.bias + here, left);
                write_some<BFloat16>(target, value, left);
            }
        }
}

}  // namespace
}  // namespace pd

// `scales` and `middle` are padded to whole blocks.
extern "C" void pd_multiply_int8(const pd::Weight* weight, const uint16_t* inputs,
                                 uint16_t* outputs, int64_t rows, int64_t threads) {
    long words = (weight->inputs + pd::FOUR - 1) / pd::FOUR;
    long blocks = (weight->outputs + pd::BLOCK - 1) / pd::BLOCK;
    long useful = weight->outputs * weight->inputs / pd::WORTH_A_THREAD;
    threads = threads < useful ? threads : useful > 1 ? useful : 1;
    static thread_local std::vector<uint32_t> narrow;
    static thread_local std::vector<float> scales;
    if ((long)narrow.size() < rows * words) narrow.resize(rows * words);
    if ((long)scales.size() < rows) scales.resize(rows);
    uint32_t* rows_of = narrow.data();
    float* row_scales = scales.data();
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        static thread_local std::vector<float> sums;
        if ((long)sums.size() < rows * pd::BLOCK) sums.resize(rows * pd::BLOCK);
#pragma omp for schedule(static)
        for (long row = 0; row < rows; ++row)
            row_scales[row] = pd::quantize(inputs + row * weight->inputs, weight->inputs, words,
                                           (uint8_t*)(rows_of + row * words));
#pragma omp for schedule(static)
        for (long index = 0; index < blocks; ++index)
            pd::block(*weight, rows_of, row_scales, outputs, rows, index, sums.data());
    }
}

PD_AGAIN(pd_multiply_int8)

extern "C" int pd_quads() {
#ifdef PD_QUADS
    return 1;
#else
    return 0;
#endif
}
