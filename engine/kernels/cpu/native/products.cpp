// Products of a few rows with a weight in oneDNN's layout for bfloat16: [outputs / 64][inputs
// / 2][64] words, rows of inputs padded with zeros. Each byte of it is read once: a run of
// steps that fits into the first cache serves all rows, while the next one is fetched.
#include <vector>

#include "again.hpp"
#include "tile.hpp"

namespace pd {
namespace {

constexpr long BLOCK = 64, STEPS = 32, WORTH_A_THREAD = 1 << 17;
constexpr long AHEAD = STEPS * BLOCK * 3 / 2;  // words: 12 KiB of the first cache's 32 at least

struct Weight {
    const uint32_t* packed;
    const uint16_t* bias;
    int64_t outputs, inputs, padded_inputs;
};

void block(const Weight& weight, const uint16_t* inputs, uint16_t* outputs, long rows,
           long index, float* sums) {
    long steps = weight.inputs / 2, stride = weight.inputs / 2;
    const uint32_t* packed = weight.packed + index * weight.padded_inputs / 2 * BLOCK;
    for (long step = 0; step < steps; step += STEPS) {
        long some = steps - step < STEPS ? steps - step : STEPS;
        multiply<Pairs>({(const uint32_t*)inputs + step, stride, packed + step * BLOCK, BLOCK,
                         sums, BLOCK, some, step > 0, AHEAD},
                        rows, BLOCK);
    }
    long count = weight.outputs - index * BLOCK;
    for (long row = 0; row < rows; ++row)
        for (long at = 0; at < BLOCK && at < count; at += LANES) {
            Floats value = load<Floats>(sums + row * BLOCK + at);
            long left = count - at;
            const uint16_t* bias = weight.bias + index * BLOCK + at;
            uint16_t* target = outputs + row * weight.outputs + index * BLOCK + at;
            if (left >= LANES) {
                BFloat16::write(target, weight.bias ? value + BFloat16::read(bias) : value);
            } else {
                if (weight.bias) value += read_some<BFloat16>(bias, left);
                write_some<BFloat16>(target, value, left);
            }
        }
}

}  // namespace
}  // namespace pd

extern "C" void pd_multiply(const pd::Weight* weight, const uint16_t* inputs, uint16_t* outputs,
                            int64_t rows, int64_t threads) {
    long blocks = (weight->outputs + pd::BLOCK - 1) / pd::BLOCK;
    // A thread that is woken for less costs more than it does.
    long useful = weight->outputs * weight->inputs / pd::WORTH_A_THREAD;
    threads = threads < useful ? threads : useful > 1 ? useful : 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        static thread_local std::vector<float> sums;
        if ((long)sums.size() < rows * pd::BLOCK) sums.resize(rows * pd::BLOCK);
#pragma omp for schedule(static)
        for (long index = 0; index < blocks; ++index)
            pd::block(*weight, inputs, outputs, rows, index, sums.data());
    }
}

PD_AGAIN(pd_multiply)

// Whether bfloat16 is multiplied in pairs here: otherwise torch is the faster of the two.
extern "C" int pd_pairs() { return pd::Pairs::UNIT == 2; }
