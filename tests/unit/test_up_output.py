"""What `up` says goes where somebody reads it, and ends nothing where nobody does."""

import errno
import io
import os
import sys

import pytest

from deploy.up import _say


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
