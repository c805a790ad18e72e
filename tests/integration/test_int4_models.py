"""Quantized weights in whole models on a CPU, by its kernels: as plain torch has them."""

import logging
from pathlib import Path

import pytest
import torch

from deploy.config import DEMO_MODEL
from engine.checkpoints.linear import PackedLinear, PlainLinear
from engine.errors import KernelsUnavailable
from engine.kernels.cpu.build import library
from engine.kernels.cpu.int4 import Int4Linear
from engine.kernels.cpu.library import Library
from engine.kernels.cpu.native import CpuKernels
from engine.models.decoder import Decoder
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import hand_over, load, prompt, prompt_logits, requests, run
from tests.fakes.packed import CONFIGS, pack_in_act_order
from tests.fakes.parts import parts_of
from tests.integration.test_packed import EIGHT, FAMILIES, made, narrow

pytestmark = pytest.mark.skipif(
    not CpuKernels(library()).multiplies_int4, reason="this CPU has no pairs of bfloat16"
)
FOUR = [one for one in CONFIGS if one not in EIGHT]
TOKENS = prompt(40)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", FOUR)
def test_four_bits_say_what_plain_torch_says(layout: str, family: str, tmp_path: Path) -> None:
    packed, _ = made(tmp_path, family, layout)
    ours, theirs = load(packed), narrow(packed)
    answer, exact = (prompt_logits(one, TOKENS, 40) for one in (ours, theirs))
    torch.testing.assert_close(answer, exact, rtol=1e-3, atol=1e-4)
    asked = requests([prompt(length) for length in (3, 18, 41)])
    assert run(ours, asked) == run(theirs, asked)
    assert ours.info.fingerprint == theirs.info.fingerprint


@pytest.mark.parametrize("layout", EIGHT)
def test_eight_bits_are_unpacked_when_they_are_read(layout: str, tmp_path: Path) -> None:
    """Then rows are not quantized, as they are on a GPU: nearer to what the numbers say."""
    packed, plain = made(tmp_path, "llama", layout)
    answer, exact = (prompt_logits(load(one), TOKENS, 40) for one in (packed, plain))
    torch.testing.assert_close(answer, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_near_float32(dtype: str, tmp_path: Path) -> None:
    packed, _ = made(tmp_path, "llama", "awq")
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
def test_split_is_unsplit(family: str, tmp_path: Path) -> None:
    packed, _ = made(tmp_path, family, "awq")
    source, sink, whole = (load(packed, block_size=4) for _ in range(3))
    asked = requests([prompt(length) for length in (3, 18, 41)])
    assert hand_over(source, sink, asked) == run(whole, asked)


def test_the_demo_model_rounded_to_four_bits(caplog: pytest.LogCaptureFixture) -> None:
    rounded = {"dtype": "bfloat16", "quantization": "int4"}
    with caplog.at_level(logging.INFO, "engine.placing"):
        ours = load(DEMO_MODEL, **rounded)
    theirs, plain = (
        load(DEMO_MODEL, cpu_kernels="torch", **rounded),
        load(DEMO_MODEL, dtype="bfloat16"),
    )
    answer, twin, exact = (prompt_logits(one, TOKENS, 32) for one in (ours, theirs, plain))
    assert (answer - twin).norm() < 0.02 * twin.norm()
    assert 0.0125 < (answer - exact).norm() / exact.norm() < 0.25
    assert "products have weights in int4; on a random probe" in caplog.text
    assert ours.info.fingerprint == theirs.info.fingerprint != plain.info.fingerprint


def test_each_product_is_of_its_kind(tmp_path: Path) -> None:
    packed, _ = made(tmp_path, "llama", "awq")
    ours = load(packed, dtype="bfloat16").decoder
    assert isinstance(ours, Decoder)
    assert isinstance(ours.head, PackedLinear | PlainLinear), "the checkpoint has it whole"
    found = [one for one in parts_of(ours.layers) if isinstance(one, Int4Linear)]
    assert len(found) == 4 * len(ours.layers)


@pytest.fixture
def without_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Library, "multiplies_bfloat16_pairs", False)


@pytest.mark.usefixtures("without_pairs")
def test_a_cpu_without_the_instructions_unpacks_checkpoints(tmp_path: Path) -> None:
    packed, _ = made(tmp_path, "llama", "gptq")
    answer, exact = (prompt_logits(one, TOKENS, 40) for one in (load(packed), narrow(packed)))
    torch.testing.assert_close(answer, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("without_pairs")
def test_a_cpu_without_the_instructions_rounds_nothing(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    with pytest.raises(KernelsUnavailable, match=r"--quantization int4 needs .* AVX512-BF16"):
        load(tmp_path, quantization="int4")


def test_a_cpu_does_not_round_to_eight_bits_of_a_gpu(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    with pytest.raises(KernelsUnavailable, match=r"fp8 is for --device cuda.*int8 and int4"):
        load(tmp_path, quantization="fp8")
