"""Logging to a pipe without blocking: lines are dropped while its reader hangs."""

import logging
import os
import sys
from collections.abc import Callable

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
# libraries that add their own handlers and also pass lines on to the root's
BRING_THEIR_OWN = ("huggingface_hub",)
MOST_BYTES = 4096  # a pipe takes this much as a whole or not at all (PIPE_BUF)


def start_logging(level: str, *, lossy: bool) -> Callable[[str], None]:
    """Log to standard error; `lossy` if that is a pipe to the starter, which may hang.

    Returns a function that writes a line there unchanged.
    """
    for name in BRING_THEIR_OWN:
        _let_no_handlers_in(name)
    handler = LossyHandler(sys.stderr.fileno()) if lossy else logging.StreamHandler()
    handler.addFilter(_is_news)
    logging.basicConfig(level=level.upper(), format=LOG_FORMAT, handlers=[handler])
    return handler.say if isinstance(handler, LossyHandler) else _say


def _is_news(record: logging.LogRecord) -> bool:
    """Torch logs counts of its caches as a process ends, after the reason why it does."""
    return record.levelno > logging.INFO or not record.name.startswith("torch.")


class _Relayed(logging.Logger):
    """A logger without handlers of its own, so that its lines are not written twice."""

    def addHandler(self, hdlr: logging.Handler) -> None:  # noqa: N802  the library's name
        """See logging.Logger."""


def _let_no_handlers_in(name: str) -> None:
    """Keep handlers off a library's logger, whether it exists or is created later."""
    before = logging.getLoggerClass()
    logging.setLoggerClass(_Relayed)
    logger = logging.getLogger(name)
    logging.setLoggerClass(before)
    for handler in list(logger.handlers):
        logger.removeHandler(handler)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


class LossyHandler(logging.Handler):
    """Writes to `fd` without blocking; when the reader is back, logs how many lines were lost.

    Other processes that write there must write whole lines without blocking, too.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        os.set_blocking(fd, False)
        self.fd = fd
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        self.say(self.format(record))

    def say(self, line: str) -> None:
        """Write a line unchanged, such as one from a child process."""
        if self.lost and self._write(f"{self.lost} lines of this log were lost"):
            self.lost = 0
        if self.lost or not self._write(line):
            self.lost += 1

    def _write(self, line: str) -> bool:
        data = line.encode(errors="replace")[: MOST_BYTES - 1] + b"\n"
        try:
            os.write(self.fd, data)
        except OSError:  # the pipe is full, or its reader is gone
            return False
        return True
