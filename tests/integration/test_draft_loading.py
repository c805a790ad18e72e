"""A draft model is loaded beside the model: what fits, what is refused, what it takes."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from engine.errors import UnusableCheckpoint
from engine.request import Sampling
from engine.running.replaying import ReplayingRunner
from engine.running.runner import PlainRunner
from engine.stepping.draft_model import ModelDrafter
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.drafter import drafted_by
from tests.fakes.driver import load, requests, run

GREEDY = Sampling(max_tokens=24, temperature=0, ignore_eos=True)


def test_memory_for_kv_is_shared_with_the_draft(llama: Path, tmp_path: Path) -> None:
    stranger = make_checkpoint(tmp_path, num_hidden_layers=1)
    limit = {"max_model_len": 64, "kv_cache_memory_bytes": 1 << 20}
    plain, engine = load(llama, **limit), load(llama, **limit, **drafted_by(stranger))
    block, drafts = plain.kv_regions[0].block_bytes, load(stranger).kv_regions[0].block_bytes
    assert plain.load.total_blocks == (1 << 20) // block
    assert engine.load.total_blocks == (1 << 20) // (block + drafts)


@pytest.mark.parametrize("size", [300, 400])
def test_another_vocabulary_is_cut_or_filled_up(llama: Path, tmp_path: Path, size: int) -> None:
    """A token that the draft model does not have is no draft, and is read as another."""
    other = make_checkpoint(tmp_path, vocab_size=size)
    engine = load(llama, **drafted_by(other))
    asked = requests([(383, 299, 300, 1, 383)], replace(GREEDY, temperature=2.0, seed=3))
    assert run(engine, asked) == run(load(llama), asked)
    assert engine.load.draft_tokens > 0
    only = load(llama, **drafted_by(other))
    assert run(only, requests([(1, 2)], replace(GREEDY, allowed_token_ids=(383,)))) == [
        [383] * 24
    ]
    assert only.load.accepted_tokens == only.load.draft_tokens > 0, "nothing else is allowed"


def test_a_draft_model_that_does_not_draft_is_refused(llama: Path, tmp_path: Path) -> None:
    missing = tmp_path / "nowhere"
    missing.mkdir()
    wide = make_checkpoint(tmp_path / "wide")
    edit_config(wide, {"dtype": "float64"})
    kinds = {
        "config.json": missing,
        "does not generate text": make_checkpoint(
            tmp_path / "classifier", auto="AutoModelForSequenceClassification"
        ),
        "dtype float64": wide,
    }
    for told_of, folder in kinds.items():
        with pytest.raises(UnusableCheckpoint, match=f"--speculative-config: .*{told_of}"):
            load(llama, dtype="auto", **drafted_by(folder))


def test_a_draft_model_of_other_tokens_is_told(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = make_checkpoint(tmp_path)
    file = other / "tokenizer.json"
    told = json.loads(file.read_bytes())
    load(llama, **drafted_by(other))
    assert "its tokens are not" not in caplog.text
    told["model"]["vocab"] = dict.fromkeys(told["model"]["vocab"], 5)
    file.write_text(json.dumps(told))
    load(llama, **drafted_by(other))
    assert f"--speculative-config {other}: its tokens are not those of the model" in caplog.text


def test_draft_kv_that_others_may_share_is_not_cleared(llama: Path) -> None:
    """A sequence may begin a block that another one counts on, and fill it later."""
    drafter = load(llama, **drafted_by(llama)).scheduler.drafter
    assert isinstance(drafter, ModelDrafter)
    assert isinstance(drafter.runner, PlainRunner | ReplayingRunner)
    memory = drafter.runner.memory
    memory.blocks[3].fill_(1)
    memory.clear([3])
    assert memory.blocks[3].eq(1).all()
