"""Models with another head than one for tokens, or none: their answers are transformers'."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.errors import UnsupportedTask, UnusableCheckpoint
from engine.loading import open_engine
from engine.request import Request, RequestId
from engine.settings import EngineConfig
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.driver import assert_idle, load, prompt
from tests.fakes.pooling import (
    embed,
    hidden_states,
    insert_modules,
    pooled_by_hand,
    poolings,
    write_dense,
    write_modules,
)

CLASSIFIER, HEADLESS = "AutoModelForSequenceClassification", "AutoModel"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3")
PROMPTS = [prompt(length) for length in (1, 17, 40, 90)]
Through = Callable[[Tensor], Tensor]


@torch.inference_mode()
def logits_of(folder: Path, tokens: tuple[int, ...]) -> Tensor:
    """[labels] float32."""
    from transformers import AutoModelForSequenceClassification

    auto: object = AutoModelForSequenceClassification
    model = auto.from_pretrained(folder, dtype=torch.float32)  # type: ignore[attr-defined]
    logits: Tensor = model.eval()(torch.tensor([tokens])).logits[0]
    return logits


@pytest.mark.parametrize("family", FAMILIES)
def test_classes_are_transformers(tmp_path: Path, family: str) -> None:
    make_checkpoint(tmp_path, family, auto=CLASSIFIER, num_labels=3, pad_token_id=1)
    engine = load(tmp_path, max_num_batched_tokens=24, block_size=4)
    assert engine.info.pooling.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    for _ in range(2):  # the second time, from the cache
        raw = embed(engine, poolings(PROMPTS, task="classify", activation=False))
        told = embed(engine, poolings(PROMPTS, task="classify"))
        for tokens, logits, probabilities in zip(PROMPTS, raw, told, strict=True):
            wanted = logits_of(tmp_path, tokens)
            torch.testing.assert_close(logits[0], wanted, atol=2e-4, rtol=1e-4)
            torch.testing.assert_close(probabilities[0], wanted.softmax(-1), atol=1e-4, rtol=0)
    assert_idle(engine)


@pytest.mark.parametrize(
    ("config", "through"),
    [
        ({}, torch.sigmoid),
        ({"problem_type": "regression"}, torch.clone),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Identity"}}, torch.clone),
        ({"sbert_ce_default_activation_function": "torch.nn.Sigmoid"}, torch.sigmoid),
    ],
)
def test_one_class_is_a_score(
    tmp_path: Path, config: dict[str, object], through: Through
) -> None:
    make_checkpoint(tmp_path, "qwen2", auto=CLASSIFIER, num_labels=1, pad_token_id=1)
    edit_config(tmp_path, config)
    engine = load(tmp_path)
    assert engine.info.pooling.scores
    (found,) = embed(engine, poolings([PROMPTS[2]], task="classify"))
    wanted = through(logits_of(tmp_path, PROMPTS[2]))
    torch.testing.assert_close(found[0], wanted, atol=2e-4, rtol=1e-4)


def test_each_token_has_classes_of_its_own(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", auto=CLASSIFIER, num_labels=3, pad_token_id=1)
    engine = load(tmp_path, max_num_batched_tokens=7)
    tokens = PROMPTS[1]
    (found,) = embed(engine, poolings([tokens], task="token_classify", activation=False))
    wanted = torch.stack(
        [logits_of(tmp_path, tokens[:end]) for end in range(1, len(tokens) + 1)]
    )
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_a_head_makes_embeddings(tmp_path: Path, family: str) -> None:
    make_checkpoint(tmp_path, family, auto=HEADLESS)
    assert not any(name.startswith("model.") for name in _tensors(tmp_path))
    engine = load(tmp_path, max_num_batched_tokens=24)
    for tokens, found in zip(PROMPTS, embed(engine, poolings(PROMPTS)), strict=True):
        wanted = pooled_by_hand(hidden_states(tmp_path, tokens), "last")
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("auto", [CLASSIFIER, HEADLESS])
def test_without_a_head_for_tokens_there_are_none(tmp_path: Path, auto: str) -> None:
    make_checkpoint(tmp_path, "llama", auto=auto)
    engine = load(tmp_path)
    request = Request(RequestId("r"), PROMPTS[0])
    for ask in (engine.generate, engine.prefill, engine.reserve):
        with pytest.raises(UnsupportedTask, match="does not generate"):
            ask(request)
    assert_idle(engine)


def test_a_head_of_another_size_is_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "llama", auto=CLASSIFIER, num_labels=3)
    edit_config(tmp_path, {"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 0, "b": 1}})
    with pytest.raises(UnusableCheckpoint, match=r"score.weight is \(3, 32\)"):
        load(tmp_path)


def _tensors(folder: Path) -> list[str]:
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    return [name for name in json.loads(data[8 : 8 + size]) if name != "__metadata__"]


@pytest.mark.parametrize("family", ["qwen3", "bert"])
def test_layers_behind_the_pooling_count(tmp_path: Path, family: str) -> None:
    """A wide one through a tanh, and a narrow one without a bias, as EmbeddingGemma has two."""
    make_checkpoint(tmp_path, family, auto=HEADLESS)
    write_modules(tmp_path, "mean")
    shapes = {"2_Dense": (32, 48, True, "Tanh"), "3_Dense": (48, 8, False, "Identity")}
    wide, narrow = (write_dense(tmp_path / path, *shape) for path, shape in shapes.items())
    insert_modules(tmp_path, list(shapes))
    config = EngineConfig(model=str(tmp_path), dtype="float32", threads=1)
    engine = open_engine(config, transfer_bytes=0)
    for tokens, found in zip(PROMPTS, embed(engine, poolings(PROMPTS)), strict=True):
        mean = hidden_states(tmp_path, tokens).mean(0, keepdim=True)
        inner = torch.tanh(mean @ wide["linear.weight"].T + wide["linear.bias"])
        wanted = torch.nn.functional.normalize(inner @ narrow["linear.weight"].T, dim=-1)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_what_transformers_runs_for_us_makes_embeddings_too(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "opt", ffn_dim=48, word_embed_proj_dim=32, pad_token_id=1)
    engine = load(tmp_path, max_num_batched_tokens=24, block_size=4)
    for tokens, found in zip(PROMPTS, embed(engine, poolings(PROMPTS)), strict=True):
        wanted = pooled_by_hand(hidden_states(tmp_path, tokens), "last")
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
