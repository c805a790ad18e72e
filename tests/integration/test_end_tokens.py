"""What ends an answer, by the files of a checkpoint."""

import json
from pathlib import Path

import pytest

from engine.errors import UnusableCheckpoint
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import load


@pytest.mark.parametrize("name", ["<|assistant|>", {"content": "<|assistant|>"}])
def test_the_end_that_only_the_tokenizer_names_counts(tmp_path: Path, name: object) -> None:
    make_checkpoint(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    file = tmp_path / "tokenizer_config.json"
    file.write_text(json.dumps({**settings, "eos_token": name}))
    assert load(tmp_path).info.eos_token_ids == (0, 2)
    file.write_text(json.dumps({**settings, "eos_token": None}))
    assert load(tmp_path).info.eos_token_ids == (0,)
    (tmp_path / "tokenizer.json").unlink()
    file.write_text(json.dumps({**settings, "eos_token": name}))
    assert load(tmp_path).info.eos_token_ids == (0,)


@pytest.mark.parametrize("odd", ["</s>", ["</s>"], 1.5, True])
def test_an_end_that_is_no_token_is_refused(tmp_path: Path, odd: object) -> None:
    make_checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": odd}))
    with pytest.raises(UnusableCheckpoint, match=r"eos_token_id .* is no token id"):
        load(tmp_path)
