"""Weights of 8 and of 4 bits in a whole model: near what they were, split or not."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from deploy.config import DEMO_MODEL
from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.linear import PlainLinear
from engine.checkpoints.placement import Placement
from engine.checkpoints.storage import LinearFactory, StoredLinear
from engine.errors import UnusableCheckpoint
from engine.kernels.products import TorchProducts
from engine.models.choosing import load_model, read_config
from engine.models.decoder import Decoder
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import hand_over, load, prompt, prompt_logits, requests, run
from tests.fakes.mixture_shapes import MIXTURE_SHAPE

CLOSE = {"fp8": 0.08, "int4": 0.25}  # of the norm of a model's logits
ROUNDINGS = [*CLOSE]
FAMILIES = ["llama", "qwen3_moe", "gpt_oss", "deepseek_v3"]


def narrow(folder: Path, quantization: str, **settings: object) -> TorchEngine:
    return load(folder, quantization=quantization, cpu_kernels="torch", **settings)


def whole_engine(folder: Path) -> TorchEngine:
    """As on a GPU, with weights as they are, in plain torch."""
    engine, checkpoint = load(folder), open_checkpoint(str(folder))
    storage = LinearFactory(TorchProducts())
    place = Placement(torch.float32, torch.device("cpu"), storage=storage)
    config = read_config(checkpoint, "auto")
    engine.decoder = load_model(checkpoint, config, engine.info.max_model_len, place)
    assert not storage.errors
    return engine


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_demo_model_says_nearly_the_same(
    rounding: str, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = prompt(60)
    plain = load(DEMO_MODEL, dtype="bfloat16")
    with caplog.at_level(logging.INFO, "engine.placing"):
        ours = narrow(DEMO_MODEL, rounding, dtype="bfloat16")
    answer, exact = (prompt_logits(one, tokens, 32) for one in (ours, plain))
    away = (answer - exact).norm() / exact.norm()
    assert CLOSE[rounding] / 20 < away < CLOSE[rounding]
    assert f"products have weights in {rounding}; on a random probe" in caplog.text
    assert ours.info.fingerprint != plain.info.fingerprint


def test_four_bits_are_not_for_the_head(tmp_path: Path) -> None:
    """Nor is there a second copy of it where it is the embedding's."""
    for family, tied in (("llama", False), ("gemma", True)):
        model = narrow(make_checkpoint(tmp_path / family, family), "int4").decoder
        assert isinstance(model, Decoder)
        assert isinstance(model.head, PlainLinear)
        assert (model.head.weight.data_ptr() == model.embedding.data_ptr()) == tied
    model = narrow(tmp_path / "llama", "fp8").decoder
    assert isinstance(model, Decoder)
    assert isinstance(model.head, StoredLinear)


def heads_apart(tokens: Sequence[int]) -> dict[str, Tensor]:
    """Logits of the demo model with each head over each body, whole and in 8 bits."""
    whole, eight = (
        load(DEMO_MODEL, dtype="bfloat16"),
        narrow(DEMO_MODEL, "fp8", dtype="bfloat16"),
    )
    bodies, said = {"whole": whole, "eight": eight}, dict[str, Tensor]()
    heads = {name: _decoder(engine).head for name, engine in bodies.items()}
    for body, engine in bodies.items():
        for head, product in heads.items():
            engine.decoder = replace(_decoder(engine), head=product)
            said[f"{head} head, {body} body"] = prompt_logits(engine, tokens, 32)
    return said


def _decoder(engine: TorchEngine) -> Decoder:
    assert isinstance(engine.decoder, Decoder)
    return engine.decoder


def test_a_head_in_eight_bits_loses_less_than_all_else() -> None:
    said = heads_apart(prompt(60))
    exact = said["whole head, whole body"]

    def lost(name: str) -> float:
        return float((said[name] - exact).norm() / exact.norm())

    head, body = lost("eight head, whole body"), lost("whole head, eight body")
    assert 0 < head < 0.75 * body
    assert lost("eight head, eight body") < 1.25 * body


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_chunks_and_company_change_no_token(rounding: str, family: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, family)
    prompts = [prompt(length) for length in (3, 19, 40)]
    together = run(narrow(tmp_path, rounding, max_num_batched_tokens=16), requests(prompts))
    alone = [run(narrow(tmp_path, rounding), requests([one]))[0] for one in prompts]
    assert together == alone


@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_split_is_unsplit(rounding: str, family: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, family)
    source, sink, whole = (narrow(tmp_path, rounding, block_size=4) for _ in range(3))
    asked = requests([prompt(length) for length in (3, 18, 41)])
    assert hand_over(source, sink, asked) == run(whole, asked)


def test_each_rounding_has_kv_of_its_own(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    engines = [load(tmp_path), *(narrow(tmp_path, one) for one in ROUNDINGS)]
    assert len({engine.info.fingerprint for engine in engines}) == len(engines)


def test_transformers_own_code_is_not_rounded(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama")
    with pytest.raises(UnusableCheckpoint, match="no product of this model"):
        narrow(tmp_path, "fp8", model_impl="transformers")


@pytest.mark.parametrize("family", MIXTURE_SHAPE)
def test_a_mixture_in_one_piece_says_what_it_says_expert_by_expert(
    family: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path, family)
    tokens, whole = prompt(30), whole_engine(tmp_path)
    exact = prompt_logits(load(tmp_path), tokens, 30)
    torch.testing.assert_close(prompt_logits(whole, tokens, 30), exact, rtol=1e-4, atol=1e-4)
