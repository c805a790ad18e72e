// Tokens drawn by noise that follows from a counter (engine/sampling/noise.py): the largest of
// logits and their Gumbel noise, in one pass over what torch goes over a dozen times.
#include "again.hpp"
#include "numbers.hpp"

namespace pd {
namespace {

constexpr long WORTH_A_THREAD = 1 << 14;
constexpr uint32_t GOLDEN = 0x9E3779B9u;

// The finaliser of MurmurHash3 (Appleby).
Words mix(Words bits) {
    bits = (bits ^ bits >> 16) * 0x85EBCA6Bu;
    bits = (bits ^ bits >> 13) * 0xC2B2AE35u;
    return bits ^ bits >> 16;
}

// A Gumbel variate for each entry of the vocabulary.
Floats gumbel(Words entries, uint32_t first, uint32_t second) {
    Words bits = mix(mix(entries * GOLDEN ^ first) ^ second);
    Floats uniform = (__builtin_convertvector((Ints)(bits >> 9), Floats) + 0.5f) * 0x1p-23f;
    return -log(-log(uniform));
}

int64_t noisiest(const float* logits, uint32_t first, uint32_t second, long vocabulary) {
    const float nothing = -__builtin_inff();
    Floats best = splat(nothing);
    Ints where = {};
    for (long at = 0; at < vocabulary; at += LANES) {
        const Ints entries = counting() + (int)at;
        Floats some = vocabulary - at >= LANES ? load<Floats>(logits + at)
                                               : read_some<Float32>(logits + at, vocabulary - at);
        some += gumbel((Words)entries, first, second);
        const Ints better = (some > best) & (entries < (int)vocabulary);
        best = better ? some : best;
        where = better ? entries : where;
    }
    long token = where[0];
    float most = best[0];
    for (long lane = 1; lane < LANES; ++lane)
        if (best[lane] > most || (best[lane] == most && where[lane] < token))
            most = best[lane], token = where[lane];
    return token;
}

}  // namespace
}  // namespace pd

// Of each row [rows, vocabulary], `stride` floats apart, with the two halves of its key; the
// first of several that are equal.
extern "C" void pd_noisiest(const float* logits, int64_t stride, const int64_t* keys,
                            int64_t* tokens, int64_t rows, int64_t vocabulary,
                            int64_t threads) {
    const long useful = rows * vocabulary / pd::WORTH_A_THREAD + 1;
    threads = threads < useful ? threads : useful;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long row = 0; row < rows; ++row)
        tokens[row] = pd::noisiest(logits + row * stride, (uint32_t)keys[2 * row],
                                   (uint32_t)keys[2 * row + 1], vocabulary);
}

PD_AGAIN(pd_noisiest)
