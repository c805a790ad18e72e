"""Names on the Hugging Face hub: one that nobody knows is refused at once, one in the cache is
loaded from there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "deploy" / "demo" / "model"
CLOSED = "http://127.0.0.1:9"
NAME = "nobody/nothing"
LOAD = (
    "from api.defaults import load_defaults; from api.text.tokenizing import load_text_codec; "
    f"load_defaults('auto', '{NAME}'); load_text_codec('{NAME}')"
)


def loading(cache: Path, offline: str) -> tuple[int, str]:
    """The exit status of a process that loads the tokenizer of this name, and what it said."""
    hub = {"HF_ENDPOINT": CLOSED, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": offline}
    env = {**os.environ, "NO_PROXY": "127.0.0.1", **hub}
    command = [sys.executable, "-c", LOAD]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("offline", ["0", "1"])
def test_one_that_is_not_to_be_had_is_asked_for_once(tmp_path: Path, offline: str) -> None:
    """And not again and again, file by file, for half a minute."""
    status, said = loading(tmp_path, offline)
    assert status == 1
    assert f"OSError: no tokenizer is to be had from {NAME}" in said
    assert "Retry" not in said


def test_one_in_the_cache_is_loaded_without_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "models--nobody--nothing"
    shutil.copytree(DEMO, folder / "snapshots" / "0123abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123abc")
    status, said = loading(tmp_path, "1")
    assert status == 0, said
