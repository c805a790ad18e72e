"""Processes that serve do not traverse what they have loaded again and again."""

import subprocess
import sys
from pathlib import Path

import pytest

from discovery.garbage_collection import MOST_NEW, freeze_loaded_objects

ROOT = Path(__file__).parents[2]
LOADED = "import gc, http.client, json; from discovery.garbage_collection import *; "
FREEZE = f"{freeze_loaded_objects.__name__}()"


def test_what_was_loaded_is_not_traversed_and_new_objects_are_not_counted_as_often() -> None:
    said = "print(*map(len, (before, gc.get_objects())), gc.get_threshold()[0])"
    program = f"{LOADED} before = gc.get_objects(); {FREEZE}; {said}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    before, after, threshold = map(int, run.stdout.split())
    assert after < before // 10
    assert threshold == MOST_NEW


@pytest.mark.parametrize(
    "path",
    ["proxy/main.py", "node/main.py", "node/engine_process.py", "node/rank_process.py"],
)
def test_all_processes_that_serve_freeze_what_they_loaded(path: str) -> None:
    assert f"    {FREEZE}\n" in (ROOT / path).read_text()
