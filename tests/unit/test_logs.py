"""A log that nobody reads holds up nobody, and says afterwards what was lost."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from discovery.logs import MOST_BYTES, LossyHandler

ROOT = Path(__file__).parents[2]
LINES = 5000  # more than a pipe has room for


def line(text: str) -> logging.LogRecord:
    return logging.LogRecord("name", logging.INFO, "file", 1, text, (), None)


def test_lines_that_nobody_reads_are_lost_and_counted_and_those_after_are_not() -> None:
    reader, writer = os.pipe()
    try:
        handler = LossyHandler(writer)
        for number in range(LINES):
            handler.emit(line(f"line {number} {'x' * 50}"))
        said = os.read(reader, 1 << 20).decode().splitlines()
        assert said == [f"line {number} {'x' * 50}" for number in range(len(said))]
        handler.emit(line("after"))
        more = os.read(reader, 1 << 20).decode().splitlines()
        assert more == [f"{LINES - len(said)} lines of this log were lost", "after"]
    finally:
        os.close(reader)
        os.close(writer)


def test_a_line_is_whole_or_cut_and_never_mixed_and_a_closed_pipe_is_no_error() -> None:
    reader, writer = os.pipe()
    handler = LossyHandler(writer)
    handler.emit(line("y" * 3 * MOST_BYTES))
    handler.emit(line("z"))
    said = os.read(reader, 1 << 20).decode().splitlines()
    assert said == ["y" * (MOST_BYTES - 1), "z"]
    os.close(reader)
    handler.emit(line("into nowhere"))
    assert handler.lost == 1
    os.close(writer)


LOAD, START = (
    "import huggingface_hub.utils.logging as hub",
    "start_logging('info', lossy=False)",
)
WARN = "hub.get_logger('huggingface_hub.file').warning('no token')"


@pytest.mark.parametrize("begin", [(LOAD, START), (START, LOAD)])
def test_what_the_hub_warns_of_is_one_line_like_all_others(begin: tuple[str, str]) -> None:
    """Its logger has a handler of its own, and passes on what it is told."""
    lines = "from discovery.logs import start_logging", *begin, WARN
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=ROOT
    )
    (said,) = ran.stderr.splitlines()
    assert said.endswith(" WARNING huggingface_hub.file no token")


@pytest.mark.parametrize("lossy", [False, True])
def test_torch_adds_nothing_to_the_reason_why_a_process_ends(lossy: bool) -> None:
    """It counts its caches then, at a level that its own start resets."""
    lines = (
        "import logging; from discovery.logs import start_logging",
        f"start_logging('info', lossy={lossy})",
        "log = logging.getLogger('torch._subclasses.fake_tensor')",
        "logging.getLogger('node.main').info('no model'); log.info('hits: 0'); log.error('x')",
    )
    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, cwd=ROOT
    )
    said = [line.partition(" INFO ")[2] or line[-1] for line in ran.stderr.splitlines()]
    assert said == ["node.main no model", "x"]
