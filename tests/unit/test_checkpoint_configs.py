"""A config.json whose values are of other types is refused with the file's name."""

import json
from pathlib import Path

import pytest

from engine.checkpoints.checkpoint import open_checkpoint
from engine.errors import UnusableCheckpoint


def written(folder: Path, config: object) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"architectures": 5}, "architectures is no list of names"),
        ({"architectures": "LlamaForCausalLM"}, "architectures is no list of names"),
        ({"text_config": [5]}, "text_config is no object"),
    ],
)
def test_a_config_of_other_types_is_refused(
    config: dict[str, object], text: str, tmp_path: Path
) -> None:
    with pytest.raises(UnusableCheckpoint, match=rf"config\.json: {text}"):
        open_checkpoint(written(tmp_path, config))


def test_what_a_config_leaves_out_is_not_looked_at(tmp_path: Path) -> None:
    left_out = {"architectures": None, "text_config": None}
    assert open_checkpoint(written(tmp_path, left_out)).config == left_out


def test_a_file_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path to one looks like a name on the hub, where nobody has to look for it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").touch()
    with pytest.raises(UnusableCheckpoint, match=r"model/config\.json is no folder"):
        open_checkpoint("model/config.json")
