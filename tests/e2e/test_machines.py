"""Machines with cables between them: a part of what `make machines` does, and our chart."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.machines.lan import why_not

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "run",
    [
        ["tests.machines.hosts"],
        ["tests.machines", "--seconds", "30", "--rate", "2", "--seed", "1"],
        ["tests.machines", "--seconds", "10", "--rate", "2", "--connector", "tcp"],
        ["tests.machines.chart"],
    ],
    ids=["hosts", "nixl", "tcp", "chart"],
)
def test_whatever_becomes_of_machines_nobody_goes_without_an_answer(run: list[str]) -> None:
    if why := why_not():
        pytest.skip(f"this system makes no networks: {why}")
    command = [sys.executable, "-m", *run]
    ran = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
