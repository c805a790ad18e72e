"""Logging to a pipe without blocking: lines are dropped while its reader hangs."""

import logging
import os
import sys
from collections.abc import Callable

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
BRING_THEIR_OWN = ("huggingface_hub",)  # and pass all on to the root's handlers besides
MOST_BYTES = 4096  # a pipe takes so many whole or not at all (PIPE_BUF)


def start_logging(level: str, *, lossy: bool) -> Callable[[str], None]:
    """To standard error; `lossy` where that is a pipe to whoever started this, who may hang.

    Answers with what says a line there as it is.
    """
    for name in BRING_THEIR_OWN:
        _let_no_handlers_in(name)
    if not lossy:
        logging.basicConfig(level=level.upper(), format=LOG_FORMAT)
        return _say
    handler = LossyHandler(sys.stderr.fileno())
    logging.basicConfig(level=level.upper(), format=LOG_FORMAT, handlers=[handler])
    return handler.say


class _Relayed(logging.Logger):
    """What is said here is the root's to write: whoever adds a handler is not heard twice."""

    def addHandler(self, hdlr: logging.Handler) -> None:  # noqa: N802  the library's name
        """See logging.Logger."""


def _let_no_handlers_in(name: str) -> None:
    """To a library's logger, which it may have made already, or makes when it is loaded."""
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
    """Writes to `fd`, which does not block from then on; who reads again is told what is lost.

    Whoever else writes there has to do it so, too: lines are whole, whoever wrote them.
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
        """A line as it is, from a process of ours for instance."""
        if self.lost and self._write(f"{self.lost} lines of this log were lost"):
            self.lost = 0
        if self.lost or not self._write(line):
            self.lost += 1

    def _write(self, line: str) -> bool:
        data = line.encode(errors="replace")[: MOST_BYTES - 1] + b"\n"
        try:
            os.write(self.fd, data)
        except OSError:  # it is full, or nobody reads any more
            return False
        return True
