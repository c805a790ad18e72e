"""Quantized weights in whole models on a CPU, by its kernels: as plain torch has them."""

import logging
from pathlib import Path

import pytest
import torch

from deploy.config import DEMO_MODEL
from engine.checkpoints.linear import PackedLinear, PlainLinear
from engine.errors import KernelsUnavailable
from engine.kernels.cpu.build import library
from engine.kernels.cpu.few_bits import FewBitsLinear
from engine.kernels.cpu.library import Library
from engine.kernels.cpu.native import CpuKernels
from engine.models.decoder import Decoder
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import hand_over, load, prompt, prompt_logits, requests, run
from tests.fakes.packed import CONFIGS, pack_in_act_order
from tests.fakes.parts import parts_of
from tests.integration.test_packed import EIGHT, FAMILIES, made, narrow

pytestmark = pytest.mark.skipif(
    not CpuKernels(library()).multiplies_few_bits, reason="this CPU has no pairs of bfloat16"
)
FOUR = [one for one in CONFIGS if one not in EIGHT]
TOKENS = prompt(40)


def assert_say_the_same(ours: TorchEngine, theirs: TorchEngine) -> None:
    answer, exact = (prompt_logits(one, TOKENS, 40) for one in (ours, theirs))
    torch.testing.assert_close(answer, exact, rtol=1e-3, atol=1e-4)
    asked = requests([prompt(length) for length in (3, 18, 41)])
    assert run(ours, asked) == run(theirs, asked)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", FOUR)
def test_four_bits_say_what_plain_torch_says(layout: str, family: str, tmp_path: Path) -> None:
    packed, _ = made(tmp_path, family, layout)
    ours, theirs = load(packed), narrow(packed)
    assert_say_the_same(ours, theirs)
    assert ours.info.fingerprint == theirs.info.fingerprint


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", EIGHT)
def test_eight_bits_say_what_their_numbers_say(
    layout: str, family: str, tmp_path: Path
) -> None:
    """Rows are not quantized, as they are on a GPU."""
    packed, plain = made(tmp_path, family, layout)
    ours, theirs = load(packed), load(plain)
    assert_say_the_same(ours, theirs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layout", ["awq", "fp8"])
def test_half_precision_is_near_float32(layout: str, dtype: str, tmp_path: Path) -> None:
    packed, _ = made(tmp_path, "llama", layout)
    answer, exact = (
        prompt_logits(load(packed, dtype=one), TOKENS, 40) for one in (dtype, "float32")
    )
    assert 0 < (answer - exact).norm() < 0.02 * exact.norm()


def test_inputs_in_the_order_of_their_importance(tmp_path: Path) -> None:
    plain, packed = tmp_path / "plain", tmp_path / "packed"
    make_checkpoint(plain, "llama", **FAMILIES["llama"])
    pack_in_act_order(plain, packed)
    answer, exact = (prompt_logits(one, TOKENS, 40) for one in (load(packed), narrow(packed)))
    torch.testing.assert_close(answer, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("layout", ["awq", "fp8"])
def test_split_is_unsplit(layout: str, family: str, tmp_path: Path) -> None:
    packed, _ = made(tmp_path, family, layout)
    source, sink, whole = (load(packed, block_size=4) for _ in range(3))
    asked = requests([prompt(length) for length in (3, 18, 41)])
    assert hand_over(source, sink, asked) == run(whole, asked)


@pytest.mark.parametrize(
    ("rounding", "least", "most"), [("int4", 0.0125, 0.25), ("fp8", 0.005, 0.1)]
)
def test_the_demo_model_rounded(
    rounding: str, least: float, most: float, caplog: pytest.LogCaptureFixture
) -> None:
    rounded = {"dtype": "bfloat16", "quantization": rounding}
    with caplog.at_level(logging.INFO, "engine.placing"):
        ours = load(DEMO_MODEL, **rounded)
    theirs, plain = (
        load(DEMO_MODEL, cpu_kernels="torch", **rounded),
        load(DEMO_MODEL, dtype="bfloat16"),
    )
    answer, twin, exact = (prompt_logits(one, TOKENS, 32) for one in (ours, theirs, plain))
    rounded_rows = 0.05 if rounding == "fp8" else 0  # the twin's are
    assert (answer - twin).norm() < (0.02 + rounded_rows) * twin.norm()
    assert least < (answer - exact).norm() / exact.norm() < most
    assert f"products have weights in {rounding}; on a random probe" in caplog.text
    assert ours.info.fingerprint == theirs.info.fingerprint != plain.info.fingerprint


@pytest.mark.parametrize(("layout", "bits"), [("awq", 4), ("fp8", 8)])
def test_each_product_is_of_its_kind(layout: str, bits: int, tmp_path: Path) -> None:
    packed, _ = made(tmp_path, "llama", layout)
    ours = load(packed, dtype="bfloat16").decoder
    assert isinstance(ours, Decoder)
    assert isinstance(ours.head, PackedLinear | PlainLinear), "the checkpoint has it whole"
    found = [one for one in parts_of(ours.layers) if isinstance(one, FewBitsLinear)]
    assert len(found) == 4 * len(ours.layers)
    assert {one.bits for one in found} == {bits}


@pytest.fixture
def without_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "multiplies_bfloat16_pairs", False)


@pytest.mark.usefixtures("without_pairs")
@pytest.mark.parametrize("layout", ["gptq", "fp8"])
def test_a_cpu_without_the_instructions_unpacks_checkpoints(
    layout: str, tmp_path: Path
) -> None:
    packed, plain = made(tmp_path, "llama", layout)
    answer, exact = (prompt_logits(load(one), TOKENS, 40) for one in (packed, plain))
    torch.testing.assert_close(answer, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("without_pairs")
@pytest.mark.parametrize("rounding", ["int4", "fp8"])
def test_a_cpu_without_the_instructions_rounds_nothing(rounding: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    error = rf"--quantization {rounding} needs .* AVX512-BF16"
    with pytest.raises(KernelsUnavailable, match=error):
        load(tmp_path, quantization=rounding)
