// What a layer does between its products: norms, gates and turns. Each is one pass
// over its numbers; in torch each is several operations, and for a decode step that is what
// counts.
#include <cmath>
#include <type_traits>

#include "again.hpp"
#include "numbers.hpp"

namespace pd {
namespace {

// `outer` times `inner` rows of `size`, behind one another inside an outer one. With a residual
// its rows and `scale` times those are normed; `added` gets these sums. Both lie without gaps.
struct Norm {
    const void *inputs, *weight;
    void* outputs;
    int64_t outer, inner, size, outer_stride, wide_weight, threads;
    float eps;
    const void* residual = nullptr;
    void* added = nullptr;
    float scale = 1.0f;
};

// Sums are normed as they are kept, rounded.
template <class Format>
const typename Format::Item* add(const Norm& of, long row,
                                 const typename Format::Item* inputs) {
    typedef typename Format::Item Item;
    const Item* residual = (const Item*)of.residual + row * of.size;
    Item* added = (Item*)of.added + row * of.size;
    for (long at = 0; at < of.size; at += LANES) {
        long left = of.size - at;
        write_up_to<Format>(added + at,
                            read_up_to<Format>(residual + at, left) +
                                read_up_to<Format>(inputs + at, left) * of.scale,
                            left);
    }
    return added;
}

template <class Format, class Weight>
void norm(const Norm& of) {
    typedef typename Format::Item Item;
    const auto* weight = (const typename Weight::Item*)of.weight;
    long rows = of.outer * of.inner, threads = useful(rows * of.size, of.threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long row = 0; row < rows; ++row) {
        const Item* from = (const Item*)of.inputs + row / of.inner * of.outer_stride +
                           row % of.inner * of.size;
        if (of.residual) from = add<Format>(of, row, from);
        Item* to = (Item*)of.outputs + row * of.size;
        Floats squares = {};
        for (long at = 0; at < of.size; at += LANES) {
            Floats some = read_up_to<Format>(from + at, of.size - at);
            squares += some * some;
        }
        float scale = 1.0f / std::sqrt(sum(squares) / (float)of.size + of.eps);
        for (long at = 0; at < of.size; at += LANES) {
            long left = of.size - at;
            write_up_to<Format>(to + at,
                                read_up_to<Format>(from + at, left) * scale *
                                    read_up_to<Weight>(weight + at, left),
                                left);
        }
    }
}

template <class Format>
void norm_of(const Norm& of) {
    of.wide_weight ? norm<Format, Float32>(of) : norm<Format, Format>(of);
}

template <class Format>
Floats silu(Floats x) {
#ifdef PD_PAIRS
    if constexpr (std::is_same_v<Format, BFloat16>) {  // to 2^-14, of which 2^-9 are kept
        Floats below = 1.0f + exp2_short(x * -LOG2_E);
        return x * (Floats)_mm512_rcp14_ps((__m512)below);
    }
#endif
    return x / (1.0f + exp(-x));
}

Floats gelu_tanh(Floats x) {
    Floats inner = (x + x * x * x * 0.044715f) * 0.7978845608028654f;
    return x * 0.5f * (1.0f + tanh(inner));
}

// Rows of a gate and an up, each `size` long: activate(gate) * up, or for SUM their sum.
// Strides are between rows.
struct Gate {
    const void *gates, *ups;
    void* outputs;
    int64_t rows, size, gates_stride, ups_stride, activation, threads;
};

enum { SILU = 0, GELU_TANH = 1, SIGMOID = 2, RELU = 3, SUM = 4 };

template <class Format>
void gate(const Gate& of) {
    typedef typename Format::Item Item;
    long threads = useful(of.rows * of.size, of.threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long row = 0; row < of.rows; ++row) {
        const Item* gates = (const Item*)of.gates + row * of.gates_stride;
        const Item* ups = (const Item*)of.ups + row * of.ups_stride;
        Item* to = (Item*)of.outputs + row * of.size;
        for (long at = 0; at < of.size; at += LANES) {
            long left = of.size - at;
            Floats one = read_up_to<Format>(gates + at, left);
            Floats other = read_up_to<Format>(ups + at, left);
            if (of.activation == RELU) one = other = larger(Floats{}, one);  // its own gate
            one = of.activation == SILU        ? silu<Format>(one)
                  : of.activation == GELU_TANH ? gelu_tanh(one)
                  : of.activation == SIGMOID   ? 1.0f / (1.0f + exp(-one))
                                               : one;
            write_up_to<Format>(to + at, of.activation == SUM ? one + other : one * other,
                                left);
        }
    }
}

// Heads [tokens, heads, width] in place: each half against the other, by cosines and signed
// sines [tokens, width]. Strides are between tokens.
struct Turn {
    void* heads;
    const void *cosines, *sines;
    int64_t tokens, count, width, stride, table_stride, threads;
};

template <class Format>
void turn(const Turn& of) {
    typedef typename Format::Item Item;
    long half = of.width / 2, threads = useful(of.tokens * of.count * of.width, of.threads);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (long token = 0; token < of.tokens; ++token) {
        const Item* cosines = (const Item*)of.cosines + token * of.table_stride;
        const Item* sines = (const Item*)of.sines + token * of.table_stride;
        for (long head = 0; head < of.count; ++head) {
            Item* first = (Item*)of.heads + token * of.stride + head * of.width;
            for (long at = 0; at < half; at += LANES) {
                auto read = [&](const Item* from) {
                    return read_up_to<Format>(from + at, half - at);
                };
                Floats one = read(first), two = read(first + half);
                Floats turned = one * read(cosines) + two * read(sines);
                Floats other = two * read(cosines + half) + one * read(sines + half);
                write_up_to<Format>(first + at, turned, half - at);
                write_up_to<Format>(first + half + at, other, half - at);
            }
        }
    }
}

}  // namespace
}  // namespace pd

#define PD_BY_FORMAT(format, call)                  \
    switch (format) {                               \
        case 0: return pd::call<pd::Float32>(of);   \
        case 1: return pd::call<pd::BFloat16>(of);  \
        case 2: return pd::call<pd::Float16>(of);   \
    }

extern "C" void pd_norm(const void* inputs, const void* weight, void* outputs, int64_t outer,
                        int64_t inner, int64_t size, int64_t outer_stride, int64_t format,
                        int64_t wide_weight, int64_t threads, float eps) {
    pd::Norm of{inputs,       weight,      outputs, outer, inner, size,
                outer_stride, wide_weight, threads, eps};
    PD_BY_FORMAT(format, norm_of)
}

PD_AGAIN(pd_norm)

extern "C" void pd_add_norm(const void* inputs, const void* residual, void* added,
                            const void* weight, void* outputs, int64_t rows, int64_t size,
                            int64_t stride, int64_t format, int64_t wide_weight,
                            int64_t threads, float eps, float scale) {
    pd::Norm of{inputs, weight,      outputs, rows, 1,        size,
                stride, wide_weight, threads, eps,  residual, added, scale};
    PD_BY_FORMAT(format, norm_of)
}

PD_AGAIN(pd_add_norm)

extern "C" void pd_gate(const void* gates, const void* ups, void* outputs, int64_t rows,
                        int64_t size, int64_t gates_stride, int64_t ups_stride,
                        int64_t activation, int64_t format, int64_t threads) {
    pd::Gate of{gates, ups, outputs, rows, size, gates_stride, ups_stride, activation, threads};
    PD_BY_FORMAT(format, gate)
}

PD_AGAIN(pd_gate)

extern "C" void pd_turn(void* heads, const void* cosines, const void* sines, int64_t tokens,
                        int64_t count, int64_t width, int64_t stride, int64_t table_stride,
                        int64_t format, int64_t threads) {
    pd::Turn of{heads, cosines, sines, tokens, count, width, stride, table_stride, threads};
    PD_BY_FORMAT(format, turn)
}
