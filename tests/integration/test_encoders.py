"""Encoders' vectors are transformers', alone or padded in a batch with others."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import (
    EngineError,
    RequestTooLong,
    UnknownToken,
    UnsupportedTask,
    UnusableCheckpoint,
    UnusableTier,
)
from engine.loading import open_engine
from engine.pooling.encoder_engine import EncoderEngine
from engine.request import PoolingRequest, Request, RequestId
from engine.settings import EngineConfig
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.driver import prompt
from tests.fakes.pooling import embed, pooled_by_hand, poolings, write_modules

CLASSIFIER, HEADLESS = "AutoModelForSequenceClassification", "AutoModel"
SMALL: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16},
    "bert": {},
    "camembert": {},
    "deberta-v2": {"relative_attention": True, "position_buckets": 32},
    "distilbert": {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4},
    "electra": {"embedding_size": 16},
    "eurobert": {},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
    "mpnet": {},
    "roberta": {},
    "xlm-roberta": {},
    "gemma3_text": {"use_bidirectional_attention": True, "head_dim": 8, "sliding_window": 32},
    "qwen2": {"is_causal": False},
}
CLASSIFIERS = ("bert", "roberta", "distilbert", "modernbert", "deberta-v2")
LONGEST = [("bert", 512), ("roberta", 510), ("mpnet", 510)]
PROMPTS = [tuple(1 + token % 380 for token in prompt(length)) for length in (1, 5, 40, 90, 17)]


def made(folder: Path, family: str, auto: str = HEADLESS, **more: Any) -> Path:  # noqa: ANN401
    settings = {**SMALL[family], "pad_token_id": 1, **more}
    return make_checkpoint(folder, family, auto=auto, **settings)


def opened(folder: Path, **settings: Any) -> EncoderEngine:  # noqa: ANN401
    chosen = {"dtype": "float32", "threads": 1, **settings}
    engine = open_engine(EngineConfig(model=str(folder), **chosen), transfer_bytes=0)
    assert isinstance(engine, EncoderEngine)
    return engine


@torch.inference_mode()
def theirs(folder: Path, tokens: tuple[int, ...], auto: str = HEADLESS) -> Tensor:
    """[tokens, hidden], or [labels]: a prompt alone, without any padding."""
    import transformers

    model = getattr(transformers, auto).from_pretrained(folder, dtype=torch.float32).eval()
    said = model(torch.tensor([tokens]))
    found: Tensor = said.logits[0] if auto == CLASSIFIER else said.last_hidden_state[0]
    return found


@pytest.mark.parametrize("family", SMALL)
def test_vectors_are_transformers(tmp_path: Path, family: str) -> None:
    made(tmp_path, family)
    for kind in ("cls", "mean"):
        write_modules(tmp_path, kind)
        engine = opened(tmp_path, max_num_batched_tokens=200)
        for tokens, found in zip(PROMPTS, embed(engine, poolings(PROMPTS)), strict=True):
            wanted = pooled_by_hand(theirs(tmp_path, tokens), kind)
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "modernbert", "deberta-v2"]
)
def test_classes_are_transformers(tmp_path: Path, family: str) -> None:
    made(tmp_path, family, CLASSIFIER, num_labels=3)
    engine = opened(tmp_path)
    found = embed(engine, poolings(PROMPTS, task="classify"))
    for tokens, probabilities in zip(PROMPTS, found, strict=True):
        wanted = theirs(tmp_path, tokens, CLASSIFIER).softmax(-1)
        torch.testing.assert_close(probabilities[0], wanted, atol=1e-5, rtol=0)
    with pytest.raises(UnsupportedTask):
        engine.embed(poolings(PROMPTS, task="token_classify")[0])


@torch.inference_mode()
def test_the_segments_of_a_pair_count(tmp_path: Path) -> None:
    import transformers

    made(tmp_path, "bert", CLASSIFIER, num_labels=1)
    engine, tokens = opened(tmp_path), PROMPTS[2]
    types = (0,) * 15 + (1,) * 25
    asked = poolings([tokens, tokens], task="classify")
    asked[0] = PoolingRequest(RequestId("pair"), tokens, "classify", token_types=types)
    pair, alone = embed(engine, asked)
    auto: Any = transformers.AutoModelForSequenceClassification
    model = auto.from_pretrained(tmp_path).eval()
    said = model(torch.tensor([tokens]), token_type_ids=torch.tensor([types]))
    torch.testing.assert_close(pair[0], said.logits[0].sigmoid(), atol=1e-5, rtol=0)
    assert abs(pair - alone).max() > 1e-3


def test_batches_hold_as_much_as_fits_and_the_first_in_rank_go_first(tmp_path: Path) -> None:
    engine = opened(made(tmp_path, "bert"), max_num_batched_tokens=100, max_num_seqs=3)
    for number, (size, priority) in enumerate([(90, 0), (20, 0), (20, 0), (20, 0), (5, -1)]):
        rid = RequestId(str(number))
        engine.embed(PoolingRequest(rid, prompt(size), priority=priority))
    batches = list[list[str]]()
    while admitted := engine.schedule():
        assert engine.schedule() == ()
        batches.append([one.request_id for one in admitted])
        assert engine.load.running == len(admitted)
        assert len(engine.step().pooled) == len(admitted)
    assert batches == [["4"], ["0"], ["1", "2", "3"]]
    assert engine.step().num_tokens == 0


def test_a_request_that_is_taken_back_is_gone(tmp_path: Path) -> None:
    engine = opened(made(tmp_path, "bert"), max_num_seqs=1)
    one, two = poolings(PROMPTS[:2])
    engine.embed(one)
    engine.embed(two)
    engine.schedule()
    for request in (one, two):
        engine.release(request.request_id)
    assert engine.step().pooled == ()
    assert (engine.load.waiting, engine.load.running) == (0, 0)
    with pytest.raises(KeyError):
        engine.release(one.request_id)


@pytest.mark.parametrize(
    ("family", "longest"), [("bert", 512), ("roberta", 510), ("mpnet", 510)]
)
def test_all_positions_can_be_used(tmp_path: Path, family: str, longest: int) -> None:
    engine = opened(made(tmp_path, family))
    assert engine.info.max_model_len == longest
    tokens = tuple(2 + token % 380 for token in prompt(longest))
    assert embed(engine, poolings([tokens]))[0].isfinite().all()


def test_sentence_transformers_says_how_long_a_text_may_be(tmp_path: Path) -> None:
    made(tmp_path, "bert")
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    assert opened(tmp_path).info.max_model_len == 128
    assert opened(tmp_path, max_model_len=64).info.max_model_len == 64
    with pytest.raises(UnusableCheckpoint, match="--max-model-len"):
        opened(tmp_path, max_model_len=129)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (PoolingRequest(RequestId("x"), ()), EngineError),
        (PoolingRequest(RequestId("x"), (384,)), UnknownToken),
        (PoolingRequest(RequestId("x"), prompt(513)), RequestTooLong),
        (PoolingRequest(RequestId("x"), (1, 2), "classify"), UnsupportedTask),
        (PoolingRequest(RequestId("x"), (1, 2), token_types=(0,)), UnsupportedTask),
        (PoolingRequest(RequestId("x"), (1, 2), token_types=(0, 2)), UnsupportedTask),
    ],
)
def test_what_cannot_be_done_is_refused(
    tmp_path: Path, asked: PoolingRequest, error: type[EngineError]
) -> None:
    engine = opened(made(tmp_path, "bert"))
    with pytest.raises(error):
        engine.embed(asked)
    for ask in (engine.generate, engine.prefill, engine.reserve):
        with pytest.raises(UnsupportedTask):
            ask(Request(RequestId("r"), (1,)))
    assert (engine.load.waiting, engine.load.running) == (0, 0)


def test_positions_behind_no_padding_are_refused(tmp_path: Path) -> None:
    file = made(tmp_path, "roberta") / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pad_token_id": None}))
    with pytest.raises(UnusableCheckpoint, match="pad_token_id"):
        opened(tmp_path)


@pytest.mark.parametrize("family", ["bert", "roberta"])
@pytest.mark.parametrize("said", ["512", None])
def test_a_number_of_positions_that_is_none_is_refused_by_its_name(
    family: str, said: object, tmp_path: Path
) -> None:
    file = made(tmp_path, family) / "config.json"
    config = json.loads(file.read_text()) | {"max_position_embeddings": said}
    file.write_text(json.dumps(config))
    with pytest.raises(UnusableCheckpoint, match=r"config.json: max_position_embeddings has"):
        opened(tmp_path)


def test_a_checkpoint_that_lacks_tensors_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "bert")
    edit_config(tmp_path, {"num_hidden_layers": 3})
    with pytest.raises(UnusableCheckpoint, match=r"tensor encoder.layer.2"):
        opened(tmp_path)


def test_weights_of_8_bits_are_not_promised(tmp_path: Path) -> None:
    with pytest.raises(UnusableCheckpoint, match="--quantization"):
        opened(made(tmp_path, "bert"), quantization="int8")


@pytest.mark.parametrize("flag", ["kv_disk_path", "kv_offloading_size"])
def test_a_tier_below_no_kv_is_refused(tmp_path: Path, flag: str) -> None:
    with pytest.raises(UnusableTier, match="--" + flag.replace("_", "-")):
        opened(made(tmp_path, "bert"), **{flag: 1})


def test_a_type_of_no_kv_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableTier, match="--kv-cache-dtype: encoders keep no KV"):
        opened(made(tmp_path, "bert"), kv_cache_dtype="fp8")


def test_a_checkpoint_of_more_layers_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "bert")
    edit_config(tmp_path, {"num_hidden_layers": 1})
    with pytest.raises(UnusableCheckpoint, match=r"16 tensors too many, such as encoder.layer"):
        opened(tmp_path)


def test_half_a_checkpoint_is_refused(tmp_path: Path) -> None:
    file = made(tmp_path, "bert") / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UnusableCheckpoint, match="incomplete"):
        opened(tmp_path)


def test_a_setting_of_another_type_is_refused(tmp_path: Path) -> None:
    made(tmp_path, "bert")
    edit_config(tmp_path, {"hidden_act": 5})
    with pytest.raises(UnusableCheckpoint, match="hidden_act"):
        opened(tmp_path)


@pytest.mark.parametrize("head", ["TokenClassification", "QuestionAnswering"])
def test_a_head_for_something_else_is_refused(tmp_path: Path, head: str) -> None:
    made(tmp_path, "bert", f"AutoModelFor{head}")
    with pytest.raises(UnusableCheckpoint, match=f"BertFor{head}"):
        opened(tmp_path)


def test_a_head_of_pretraining_is_left_out(tmp_path: Path) -> None:
    made(tmp_path, "bert", "AutoModelForMaskedLM")
    (found,) = embed(opened(tmp_path), poolings(PROMPTS[2:3]))
    wanted = pooled_by_hand(theirs(tmp_path, PROMPTS[2]), "cls")
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
