"""Weights of 8 bits: by the formula, close to what they were, refused where they cannot be."""

import logging
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from deploy.config import DEMO_MODEL
from engine.checkpoints.linear import linear
from engine.errors import KernelsUnavailable, UnusableCheckpoint
from engine.kernels.cpu.build import library
from engine.kernels.cpu.int8 import Int8Linear, quantize
from engine.kernels.cpu.native import CpuKernels
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import load, prompt, prompt_logits

kernels = CpuKernels(library())
pytestmark = pytest.mark.skipif(
    not kernels.library.multiplies_int8_quads, reason="this CPU has no instructions for 8 bits"
)
CLOSE = 0.05  # of the norm of a model's logits


@pytest.mark.parametrize("rows", [1, 6, 33])
@pytest.mark.parametrize(("outputs", "inputs"), [(1376, 256), (33, 18), (1, 1), (130, 4864)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_what_the_formula_says(
    rows: int, outputs: int, inputs: int, bias: bool
) -> None:
    narrow = CpuKernels(library())
    narrow.quantize()
    weight, asked = (
        torch.randn(outputs, inputs).bfloat16(),
        torch.randn(rows, inputs).bfloat16(),
    )
    asked[0] = 0
    offsets = torch.randn(outputs).bfloat16() if bias else None
    answer = linear(weight, offsets, narrow)(asked)
    (whole, scales), (ours, our_scales) = quantize(weight), rounded_once(asked)
    exact = (ours @ whole.double().T) * our_scales[:, None].double() * scales.double()
    exact += 0 if offsets is None else offsets.double()
    torch.testing.assert_close(answer.double(), exact, rtol=2**-8, atol=1e-5 * inputs**0.5)


def rounded_once(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As `quantize`, but as the kernel has it: it multiplies and rounds in one, so that what
    lies between two numbers goes to the one that it is closer to, and not a float32 of it.
    """
    _, scales = quantize(rows)
    back = torch.where(scales > 0, 1 / scales, 0)
    return (rows.double() * back[:, None].double()).round(), scales


def test_the_demo_model_says_nearly_the_same(caplog: pytest.LogCaptureFixture) -> None:
    tokens = prompt(100)
    plain = load(DEMO_MODEL, dtype="bfloat16")
    with caplog.at_level(logging.INFO, "engine.placing"):
        narrow = load(DEMO_MODEL, dtype="bfloat16", quantization="int8")
    ours, theirs = (prompt_logits(one, tokens, 32) for one in (narrow, plain))
    assert (ours - theirs).norm() < CLOSE * theirs.norm()
    assert not torch.equal(ours, theirs)
    assert "products have weights of 8 bits" in caplog.text
    assert narrow.info.fingerprint != plain.info.fingerprint


def test_what_cannot_be_quantized_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    with pytest.raises(KernelsUnavailable, match="--quantization int8 needs"):
        load(tmp_path, dtype="bfloat16", quantization="int8", cpu_kernels="torch")
    with pytest.raises(UnusableCheckpoint, match="goes with bfloat16"):
        load(tmp_path, dtype="float32", quantization="int8")


def test_its_weights_go_to_large_pages_and_nothing_else_is_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gathered = list[list[tuple[int, int]]]()

    def gather(weights: Iterable[tuple[int, int]]) -> int:
        gathered.append(list(weights))
        return 0

    monkeypatch.setattr("engine.kernels.cpu.native.gather", gather)
    ours = CpuKernels(library())
    ours.move_to_large_pages()
    assert gathered == []
    ours.quantize()
    made = ours.linear(torch.randn(70, 33).bfloat16(), None)
    ours.move_to_large_pages()
    assert isinstance(made, Int8Linear)
    assert gathered == [[(made.packed.data_ptr(), made.packed.nbytes)]]
