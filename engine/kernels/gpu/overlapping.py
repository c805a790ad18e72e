"""Programmatic dependent launch (PDL): a launch begins before the previous one has ended.

Normally a launch on a stream begins when the previous one has ended and its writes are
visible, and for some microseconds memory is idle. GPUs from Hopper on can start a launch's
programs earlier, once the previous launch's last programs leave room. With PDL on, every kernel
of a decode step follows one rule: it lets the next launch begin at once, and waits before it
reads what other kernels write, and before it writes. That wait ends when the previous launch
has ended, which has itself waited for the one before it, so by then all earlier launches have
ended.

A kernel without this rule, launched in between, begins behind all earlier launches as usual.
Off, it costs nothing: kernels are compiled without it. Triton's interpreter ignores it.
"""

import triton
import triton.language as tl

_switch = {"on": False}


def overlap_launches(*, on: bool) -> None:
    """Switch PDL on or off in this process; it needs compute capability 9.0 or later."""
    _switch["on"] = on


def pdl_options() -> dict[str, bool]:
    """Extra options of a launch; its kernel has a constant OVERLAPPED, False by default."""
    return {"OVERLAPPED": True, "launch_pdl": True} if _switch["on"] else {}


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
