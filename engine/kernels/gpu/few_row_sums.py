"""Parts of the kernels of few rows: loads of weights, sums within a thread, and results.

Numbers of less than 32 bits are loaded in words, and widened where they are multiplied. Triton
would keep each in a register of its own, and take loaded vectors apart at the end of a step:
there it waits for what was loaded a step ahead.
"""

import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.gpu.rows_in_registers import unpacked

WORD_BYTES = 4


def numbers_of_word(weight: Tensor) -> int:
    """How many numbers of [.., outputs, inputs] a kernel loads as one word; 1: no words.

    Words need outputs that begin with a whole one, and have nothing behind their last one.
    """
    each = WORD_BYTES // weight.element_size()
    sizes = weight.shape[-1], *weight.stride()[:-1]
    whole = all(size % each == 0 for size in sizes) and weight.data_ptr() % WORD_BYTES == 0
    return each if whole else 1


@triton.jit
def numbers_at(at_output, first, inputs, SPAN: tl.constexpr, EACH: tl.constexpr):
    """Load [OUTPUTS, SPAN / EACH] words from input `first` on, or numbers if EACH is 1.

    Zeros are behind the inputs. What is loaded is evicted from caches first.
    """
    at = first // EACH + tl.arange(0, SPAN // EACH)[None, :]
    if EACH > 1:
        at_output = at_output.to(tl.pointer_type(tl.int32), bitcast=True)
    there = at < inputs // EACH
    return tl.load(at_output + at, mask=there, other=0.0, eviction_policy="evict_first")


@triton.jit
def widened(numbers, KIND: tl.constexpr, EACH: tl.constexpr):
    """What `numbers_at` loaded of a weight of the dtype KIND, [OUTPUTS, SPAN] in float32."""
    if EACH == 1:
        wide = numbers.to(tl.float32)
    elif EACH == 4:
        wide = unpacked(numbers)
    else:
        if KIND.is_bf16():  # the upper half of a float32
            low = (numbers << 16).to(tl.float32, bitcast=True)
            high = (numbers & -65536).to(tl.float32, bitcast=True)
        else:
            low = numbers.to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
            high = (numbers >> 16).to(tl.int16).to(KIND, bitcast=True).to(tl.float32)
        wide = tl.reshape(tl.join(low, high), (numbers.shape[0], 2 * numbers.shape[1]))
    return wide


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
