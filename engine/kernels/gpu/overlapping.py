"""Programmatic dependent launch (PDL): a launch begins before the previous one has ended.

Normally a launch on a stream begins when the previous one has ended and its writes are
visible, and for some microseconds memory is idle. GPUs from Hopper on can start a launch's
programs earlier, once the previous launch's last programs leave room. With PDL on, every kernel
of a decode step follows one rule: it lets the next launch begin at once, and waits before it
reads what other kernels write, and before it writes. That wait ends when the previous launch
has ended, which has itself waited for the one before it, so by then all earlier launches have
ended.

While a launch waits, memory may be idle: attention over a short context waits for memory more
than it reads. So a product can ask for more of its weights meanwhile, which come as far as the
L2 cache (`steps_brought`).

A kernel without this rule, launched in between, begins behind all earlier launches as usual.
Off, it costs nothing: kernels are compiled without it. Triton's interpreter ignores it.
"""

import triton
import triton.language as tl

L2_ROOM = 24 << 20
"""Bytes that a launch may bring to L2: half of a Hopper's, as others use it, too."""
LINE_BYTES = tl.constexpr(128)  # of the L2 cache
PREFETCH = tl.constexpr("prefetch.global.L2 [$1]; mov.u32 $0, 0;")
_switch = {"on": False, "brings": False}


def overlap_launches(*, on: bool, brings: bool = False) -> None:
    """Switch PDL on or off in this process; it needs compute capability 9.0 or later.

    `brings`: launches that wait bring weights to L2.
    """
    _switch.update(on=on, brings=on and brings)


def pdl_options() -> dict[str, bool]:
    """Extra options of a launch; its kernel has a constant OVERLAPPED, False by default."""
    return {"OVERLAPPED": True, "launch_pdl": True} if _switch["on"] else {}


def steps_brought(step_bytes: int, steps: int) -> int:
    """How many steps of weights behind the first a launch brings to L2 before it waits.

    All programs together load `step_bytes` in each of `steps`.
    """
    return min(L2_ROOM // step_bytes, steps - 1) if _switch["brings"] else 0


@triton.jit
def bring(at_output, first, inputs, SPAN: tl.constexpr):
    """Ask for the lines of [OUTPUTS, SPAN] numbers from input `first` on; behind the inputs,
    for the last one again.
    """
    line: tl.constexpr = LINE_BYTES * 8 // at_output.dtype.element_ty.primitive_bitwidth
    at = tl.minimum(first + tl.arange(0, SPAN // line) * line, inputs - 1)
    places = (at_output + at[None, :]).to(tl.int64)
    tl.inline_asm_elementwise(PREFETCH, "=r,l", [places], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def launch_dependents(OVERLAPPED: tl.constexpr):
    """Let the next launch begin once all programs of this one have reached this point."""
    if OVERLAPPED:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(OVERLAPPED: tl.constexpr):
    """Wait until all earlier launches have ended and their writes are visible."""
    if OVERLAPPED:
        tl.extra.cuda.gdc_wait()
