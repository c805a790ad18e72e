"""The bench of ranks runs every engine, and says how much a ratio could be at most."""

import re
import subprocess
import sys
from pathlib import Path

from bench.ranks import WORKS, most
from tests.fakes.checkpoints import make_checkpoint

ROOT = Path(__file__).parents[2]


def test_the_most_is_what_the_first_would_come_to_with_the_sums() -> None:
    assert most([3.0, 1.0, 2.0], 2.0) == 0.5
    assert most([2.0], 0.0) == 1.0


def test_every_engine_and_work_has_a_line(tmp_path: Path) -> None:
    """In a process of its own: it ends with its ranks."""
    words = ["--model", str(make_checkpoint(tmp_path)), "--ranks", "1", "2", "--rounds", "1"]
    ran = subprocess.run(
        [sys.executable, "-m", "bench.ranks", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    lines = ran.stdout.splitlines()
    assert len(lines) == 2 * len(WORKS)
    for line in lines[: len(WORKS)]:
        assert re.fullmatch(r"1 ranks, .*: \d+ tokens/s", line)
    for line in lines[len(WORKS) :]:
        rate = r"2 ranks, .*: \d+ tokens/s, \d+\.\d\d of 1; at most (\d+\.\d\d)"
        said = re.fullmatch(rate, line)
        assert said is not None, line
        assert 0 <= float(said[1]) <= 1  # rounded: ranks that wait for a processor are slow
