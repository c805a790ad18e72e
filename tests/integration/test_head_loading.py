"""A draft head is loaded with its model: what it shares, what is refused, what it takes."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoints.checkpoint import WEIGHTS, open_checkpoint
from engine.errors import UnusableCheckpoint
from engine.head_loading import read_head
from engine.models.choosing import read_config
from engine.models.decoder import Decoder
from engine.models.eagle_head import EagleHead
from engine.models.prediction_head import PredictionHead
from engine.request import Sampling
from engine.running.head_runner import OwnHeadRunner
from engine.running.runner import PlainRunner
from engine.settings import EngineConfig
from engine.stepping.head_drafter import HeadDrafter
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.device import on_device
from tests.fakes.draft_heads import LAYERS, Reference, headed, make_head_checkpoint
from tests.fakes.driver import load, prompt, requests, run
from tests.fakes.eagle_heads import eagled, make_eagle
from tests.fakes.packed import pack_stacks

GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)
AT = f"model.layers.{LAYERS}."


def head_of(engine: TorchEngine) -> tuple[Decoder, PredictionHead]:
    assert isinstance(engine.decoder, Decoder)
    assert isinstance(engine.decoder.draft_head, PredictionHead)
    return engine.decoder, engine.decoder.draft_head


def test_copies_of_the_models_own_tensors_are_not_kept(tmp_path: Path) -> None:
    """Published heads have both."""
    decoder, head = head_of(load(make_head_checkpoint(tmp_path), **headed()))
    assert head.embedding is decoder.embedding
    assert head.output is decoder.head


@pytest.mark.parametrize("name", ["embed_tokens", "shared_head.head"])
def test_other_numbers_than_the_models_are_the_heads_own(tmp_path: Path, name: str) -> None:
    made = make_head_checkpoint(tmp_path)
    weights = load_file(made / WEIGHTS)
    weights[f"{AT}{name}.weight"] = weights[f"{AT}{name}.weight"].flip(0)
    save_file(weights, made / WEIGHTS, metadata={"format": "pt"})
    engine, reference = load(made, **headed()), Reference.of(made)
    for request in requests([prompt(17)], GREEDY):
        engine.generate(request)
    drafts = 0
    while engine.load.waiting or engine.load.running:
        engine.schedule()
        for chunk in engine.scheduler.batch:
            if chunk.drafts:
                drafts += 1
                wanted = reference.drafts(chunk.seq.tokens, len(chunk.drafts))
                assert list(chunk.drafts) == wanted
        engine.step()
    assert drafts > 1


def test_only_the_first_of_several_layers_drafts(tmp_path: Path) -> None:
    made = make_head_checkpoint(tmp_path, right=True)
    weights = load_file(made / WEIGHTS)
    others = {
        name.replace(AT, f"model.layers.{LAYERS + 1}."): weight.clone()
        for name, weight in weights.items()
        if name.startswith(AT)
    }
    save_file({**weights, **others}, made / WEIGHTS, metadata={"format": "pt"})
    edit_config(made, {"num_nextn_predict_layers": 2})
    engine, asked = load(made, **headed()), requests([prompt(17)], GREEDY)
    assert run(engine, asked) == run(load(made), asked)
    assert engine.load.accepted_tokens == engine.load.draft_tokens > 0


def test_what_has_no_head_is_refused(llama: Path, tmp_path: Path) -> None:
    made = make_head_checkpoint(tmp_path)
    with pytest.raises(UnusableCheckpoint, match=r"--speculative-config: .*no layer for it"):
        load(llama, **headed())
    with pytest.raises(UnusableCheckpoint, match=r"--speculative-config: .*transformers'"):
        load(made, model_impl="transformers", **headed())
    weights = load_file(made / WEIGHTS)
    kept = {name: weight for name, weight in weights.items() if not name.startswith(AT)}
    save_file(kept, made / WEIGHTS, metadata={"format": "pt"})
    load(made)
    named = f"--speculative-config: the draft head's tensor {AT}enorm.weight is missing"
    with pytest.raises(UnusableCheckpoint, match=named):
        load(made, **headed())
    edit_config(made, {"num_nextn_predict_layers": 0})
    with pytest.raises(UnusableCheckpoint, match="no layer for it"):
        load(made, **headed())


def test_a_head_that_ranks_cannot_share_is_refused_before_its_weights_are_read(
    tmp_path: Path,
) -> None:
    made = make_checkpoint(tmp_path / "model", num_hidden_layers=6)
    shape = read_config(open_checkpoint(str(made)), "auto")
    head = make_eagle(tmp_path / "head", intermediate_size=47)
    said = eagled(head)["speculative_config"]
    config = EngineConfig(model=str(made), tensor_parallel_size=2, speculative_config=said)
    with pytest.raises(UnusableCheckpoint, match=r"size 2: 47 columns of the MLP"):
        read_head(config, shape)
    assert read_head(replace(config, tensor_parallel_size=1), shape) is not None


def test_the_log_tells_of_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load(make_head_checkpoint(tmp_path), **headed(2))
    assert "the draft head drafts up to 2 tokens at a time" in caplog.text


def test_a_model_that_only_classifies_has_no_use_for_it(tmp_path: Path) -> None:
    made = make_checkpoint(tmp_path, "qwen3", auto="AutoModelForSequenceClassification")
    assert load(made, **headed()).scheduler.drafter is None


def test_nodes_with_and_without_it_do_not_exchange_kv(tmp_path: Path) -> None:
    made = make_head_checkpoint(tmp_path)
    with_head, plain = load(made, **headed()).info, load(made).info
    assert with_head.fingerprint != plain.fingerprint
    assert (with_head.kv_layers, plain.kv_layers) == (LAYERS + 1, LAYERS)
    names = set(with_head.made_of) ^ set(plain.made_of)
    assert names == {"draft_head"}


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_weights_are_made_up_for_it(tmp_path: Path, family: str) -> None:
    made = make_head_checkpoint(tmp_path, family)
    (made / WEIGHTS).unlink()
    made_up, asked = {"load_format": "dummy"}, requests([prompt(17)], GREEDY)
    engine = load(made, **made_up, **headed())
    assert run(engine, asked) == run(load(made, **made_up), asked)
    assert engine.load.draft_tokens > 0


def test_a_quantized_checkpoint_has_one(tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack_stacks(make_head_checkpoint(tmp_path, right=True), packed)
    engine, asked = load(packed, **headed()), requests([prompt(17)], GREEDY)
    assert run(engine, asked) == run(load(packed), asked)
    assert engine.load.accepted_tokens == engine.load.draft_tokens > 0


def test_on_a_device_kv_has_what_both_leave(tmp_path: Path) -> None:
    """A block is counted once: the head's KV is one of its layers."""
    made = make_head_checkpoint(tmp_path)
    room = {"kv_cache_memory_bytes": None, "gpu_memory_utilization": 0.5}
    (region,) = on_device(made, None, **room, **headed()).kv_regions
    left = (1 << 29) - region.num_blocks * region.block_bytes
    assert 0 < left < 1 << 20


def test_blocks_are_cleared_by_the_model_alone(tmp_path: Path) -> None:
    """Its head enters a block after the model has written to it."""
    engine = load(make_head_checkpoint(tmp_path), dtype="bfloat16", **headed())
    drafter = engine.scheduler.drafter
    assert isinstance(drafter, HeadDrafter)
    assert isinstance(drafter.runner, OwnHeadRunner)
    assert isinstance(drafter.runner.runner, PlainRunner)
    memory = drafter.runner.runner.memory
    assert memory.block_rows is engine.memory.block_rows
    memory.blocks[3].fill_(1)
    memory.clear([3])
    assert memory.blocks[3].eq(1).all()
    engine.memory.clear([3])
    assert memory.blocks[3].eq(0).all()


@pytest.mark.parametrize(("tokens", "seats", "rows"), [(48, 64, 64), (48, 5, 48)])
def test_there_is_room_for_the_states_of_the_largest_batch(
    tmp_path: Path, tokens: int, seats: int, rows: int
) -> None:
    limits = {"max_num_batched_tokens": tokens, "max_num_seqs": seats}
    _, head = head_of(load(make_head_checkpoint(tmp_path), **limits, **headed()))
    assert head.states.shape == (rows, 32)


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("six"), num_hidden_layers=6)


def test_an_eagle_head_in_the_form_of_speculators(six: Path, tmp_path: Path) -> None:
    """Its layer's config is nested."""
    head = make_eagle(tmp_path / "head", words=96)
    flat = json.loads((head / "config.json").read_text())
    outer = {"draft_vocab_size": flat.pop("draft_vocab_size"), "target_hidden_size": 32}
    nested = {**outer, "speculators_model_type": "eagle3", "transformer_layer_config": flat}
    asked = requests([prompt(40)], GREEDY)
    one = load(six, **eagled(head))
    (head / "config.json").write_text(json.dumps(nested))
    other = load(six, **eagled(head))
    assert run(one, asked) == run(other, asked)
    assert one.load.draft_tokens == other.load.draft_tokens > 0


def test_an_eagle_head_shares_the_models_embedding(six: Path, tmp_path: Path) -> None:
    engine = load(six, **eagled(make_eagle(tmp_path / "head")))
    assert isinstance(engine.decoder, Decoder)
    assert isinstance(head := engine.decoder.draft_head, EagleHead)
    assert head.embedding is engine.decoder.embedding


def test_nodes_with_different_heads_do_not_exchange_kv(six: Path, tmp_path: Path) -> None:
    some = [
        make_eagle(tmp_path / "a", words=96),
        make_eagle(tmp_path / "b", words=96, norm_before_residual=True),
    ]
    infos = [load(six, **eagled(one)).info for one in (some[0], *some)]
    assert infos[0].fingerprint == infos[1].fingerprint != infos[2].fingerprint
    assert {one.kv_layers for one in infos} == {7}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_hidden_layers": 2}, "2 layers, a head has one"),
        ({"target_hidden_size": 64}, "hidden states of 64 numbers, the model's have 32"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 6]}, "reads layers 2, 6 of a model of 6"),
        ({"eagle_aux_hidden_state_layer_ids": "all"}, "Expected `array`"),
        ({"vocab_size": 500}, "for 500 tokens, the model has 384"),
        ({"num_key_value_heads": 4}, "4 heads of 8 numbers, unlike the model's"),
        ({"head_dim": 16}, "2 heads of 16 numbers, unlike the model's"),
        ({"draft_vocab_size": -1}, ">= 1"),
        ({"draft_vocab_size": 95}, "tensor lm_head.weight is"),
        ({"hidden_size": "32"}, "hidden_size has to be a number"),
        ({"transformer_layer_config": 3}, "transformer_layer_config is no object"),
        ({"eagle_config": [3]}, "eagle_config is no object"),
    ],
)
def test_an_eagle_head_of_another_model_is_refused(
    six: Path, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    head = make_eagle(tmp_path / "head", words=96)
    edit_config(head, changes)
    with pytest.raises(UnusableCheckpoint, match=f"--speculative-config.*{reason}"):
        load(six, **eagled(head))


def test_tensors_of_another_head_are_refused_by_name(six: Path, tmp_path: Path) -> None:
    head = make_eagle(tmp_path / "head", words=96)
    weights = load_file(head / WEIGHTS)
    wrong = {
        "d2t is no": {**weights, "d2t": weights["d2t"] + 384},
        "tensor d2t is no": {**weights, "d2t": -torch.arange(96) + 3},
        "fc.weight": {**weights, "fc.weight": weights["fc.weight"][:, :64]},
        "tensors too many": {**weights, "more": weights["norm.weight"]},
        "midlayer.hidden_norm.weight is missing": {
            name: one for name, one in weights.items() if "hidden_norm" not in name
        },
    }
    for told_of, tensors in wrong.items():
        kept = {name: one.contiguous().clone() for name, one in tensors.items()}
        save_file(kept, head / WEIGHTS, metadata={"format": "pt"})
        with pytest.raises(UnusableCheckpoint, match=f"--speculative-config.*{told_of}"):
            load(six, **eagled(head))


def test_attention_over_latents_has_no_eagle_head(tmp_path: Path) -> None:
    model = make_checkpoint(tmp_path / "model", "deepseek_v3", num_hidden_layers=6)
    head = make_eagle(tmp_path / "head")
    edit_config(head, {"num_key_value_heads": 1, "head_dim": 8})  # as its rotated part has
    with pytest.raises(UnusableCheckpoint, match="unlike the model's"):
        load(model, **eagled(head))


@pytest.mark.parametrize(("tokens", "seats", "rows"), [(48, 64, 64), (48, 5, 48)])
def test_there_is_room_for_what_an_eagle_head_reads(
    six: Path, tmp_path: Path, tokens: int, seats: int, rows: int
) -> None:
    limits = {"max_num_batched_tokens": tokens, "max_num_seqs": seats}
    engine = load(six, **limits, **eagled(make_eagle(tmp_path / "head")))
    assert isinstance(engine.decoder, Decoder)
    assert isinstance(head := engine.decoder.draft_head, EagleHead)
    assert engine.decoder.layer_inputs is not None
    assert engine.decoder.layer_inputs.rows.shape == (rows, 3 * 32)
    assert head.states.shape == (rows, 32)


def test_beside_quantized_weights_an_eagle_head_is_whole(six: Path, tmp_path: Path) -> None:
    engine = load(
        six, dtype="bfloat16", quantization="fp8", **eagled(make_eagle(tmp_path / "head"))
    )
    assert isinstance(engine.decoder, Decoder)
    assert isinstance(head := engine.decoder.draft_head, EagleHead)
    assert type(head.join) is not type(engine.decoder.head)
    asked = requests([prompt(17)], GREEDY)
    plain = load(six, dtype="bfloat16", quantization="fp8")
    assert run(engine, asked) == run(plain, asked)
