"""Parts of the kernels of few rows: loads of weights, sums within a thread, and results."""

import triton
import triton.language as tl


@triton.jit
def weights_at(at_output, at, inputs):
    """Load [OUTPUTS, CHUNKS * VECTOR], zeros behind the inputs; evicted from caches first."""
    return tl.load(at_output + at, mask=at < inputs, other=0.0, eviction_policy="evict_first")


@triton.jit
def by_thread(numbers, VECTOR: tl.constexpr):
    """Sum [.., size] to [.., size / VECTOR], over vectors that one thread has loaded."""
    few: tl.constexpr = numbers.shape[0]
    return tl.sum(tl.reshape(numbers, (few, numbers.shape[1] // VECTOR, VECTOR)), 2)


@triton.jit
def rounded_product(total, bias, output, end, made):
    """A product [OUTPUTS] with its bias: float32, rounded to the dtype of `made`."""
    if bias is not None:
        total += tl.load(bias + output, mask=output < end, other=0.0).to(tl.float32)
    return total.to(made.dtype.element_ty).to(tl.float32)


@triton.jit
def store(answer, row, rows, output, width, onto, onto_stride, scale, made):
    """Add the residual and store; a gate's result is rounded before it is added, too."""
    inside = (output < width) & (row < rows)
    answer = answer.to(made.dtype.element_ty)
    if onto is not None:
        before = tl.load(onto + row * onto_stride + output, mask=inside, other=0.0)
        answer = before.to(tl.float32) + scale * answer.to(tl.float32)
    tl.store(made + row * width + output, answer.to(made.dtype.element_ty), mask=inside)
