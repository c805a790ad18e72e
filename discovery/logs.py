"""Log lines into a pipe whose reader may hang: they are lost then, and the process goes on."""

import logging
import os

MOST_BYTES = 4096  # a pipe takes so many whole or not at all (PIPE_BUF)


class LossyHandler(logging.Handler):
    """Writes to `fd`, which does not block from then on; who reads again is told what is lost.

    For a process that is alone in writing there, and is read by who has started it.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        os.set_blocking(fd, False)
        self.fd = fd
        self.lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        if self.lost and self._write(f"{self.lost} lines of this log were lost"):
            self.lost = 0
        if self.lost or not self._write(self.format(record)):
            self.lost += 1

    def _write(self, line: str) -> bool:
        data = line.encode(errors="replace")[: MOST_BYTES - 1] + b"\n"
        try:
            os.write(self.fd, data)
        except OSError:  # it is full, or nobody reads any more
            return False
        return True
