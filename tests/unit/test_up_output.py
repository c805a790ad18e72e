"""What `up` says goes where somebody reads it, and ends nothing where nobody does."""

import errno
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.cli import parse
from deploy.config import UpConfig
from deploy.up import LocalCluster, _say

ROOT = Path(__file__).parents[2]
COMMANDS = "proxy", "prefill", "decode"
ADDRESSES = {"http_address": "h:1", "discovery_address": "h:2"}


class Hung(io.StringIO):
    """A terminal that has been closed."""

    error = OSError(errno.EIO, "Input/output error")

    def flush(self) -> None:
        raise self.error


class Full(Hung):
    error = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_a_terminal_that_is_gone_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or Python would try it once more at its end, and end with another exit code."""
    monkeypatch.setattr(sys, "stdout", Hung())
    _say("a line")
    assert os.path.samefile(sys.stdout.fileno(), os.devnull)
    _say("another")
    sys.stdout.close()


def test_one_that_is_full_is_written_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Full()
    monkeypatch.setattr(sys, "stdout", full)
    _say("a line")
    assert sys.stdout is full
    monkeypatch.setattr(sys, "stdout", said := io.StringIO())
    _say("another")
    assert said.getvalue() == "another\n"


OWN_LINE = """
import logging
from deploy.supervisor import log
from deploy.up import start_logging
start_logging("info")
log.warning("decode-0 ended with status -9, again in 0.5 s")
"""


def test_its_own_lines_are_like_those_of_its_children() -> None:
    """With a name and the time: who reads the log later wants to know when a node died."""
    command = [sys.executable, "-c", OWN_LINE]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    line = rf" {{7}}up \| {when} WARNING deploy.supervisor decode-0 ended with status -9, .*\n"
    assert re.fullmatch(line, ran.stderr)


async def test_a_value_that_begins_like_a_flag_reaches_all_processes() -> None:
    cluster = LocalCluster(UpConfig(served_model_name=("-v",), model="--m", max_logprobs=-1))
    cluster.proxy.ready.set_result(ADDRESSES)
    for process, command in zip((cluster.proxy, *cluster.nodes), COMMANDS, strict=True):
        _, bound = parse([command, *process.arguments()[3:]])
        config = bound.arguments["config"]
        assert config.served_model_name == ("-v",)
        assert (config.model, config.max_logprobs) == ("--m", -1)
