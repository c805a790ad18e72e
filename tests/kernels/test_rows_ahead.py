"""Rows of the bench of a GPU, and engines of its steps, compile for Hopper before they run.

Here with a device that stands for one, at the smallest shapes: a row that cannot be gone
through without memory would be compiled while others wait to be measured.
"""

import sys

import pytest

from tests.kernels.ahead import Hopper, compiling


@pytest.mark.parametrize(
    ("shape", "module"),
    [
        ("tiny-experts", "experts"),
        ("tiny-experts", "recurrent"),
        ("tiny-experts", "steps"),
        ("tiny-fp8", "steps"),
        ("tiny", "attention"),
    ],
)
def test_all_of_it_compiles(shape: str, module: str) -> None:
    if module == "steps":
        pytest.importorskip("llguidance")  # an engine's: kernels do without
    assert "left: []" in compiling("tests.kernels.test_rows_ahead", shape, module)


def _main(shape: str, module: str) -> None:
    import triton

    triton.runtime.driver.set_active(Hopper())

    from bench.gpu.ahead import compile_module
    from bench.gpu.shapes import SHAPES

    left = list(compile_module(SHAPES[shape], module))
    print(f"left: {left}")  # noqa: T201  it is what the parent reads


if __name__ == "__main__":
    _main(*sys.argv[1:])
