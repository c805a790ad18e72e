"""Requests that are cut because their process ends: a line in the log, and no traceback."""

import asyncio
import logging

SERVER_LOG = "uvicorn.error"


class CutShort(logging.Filter):
    """Takes the traceback off what a server says of a request that it has cancelled."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a record."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            record.exc_info = record.exc_text = None
        return True


def expect_cuts() -> None:
    """To be called once, where the server is made: it cancels requests only when it ends."""
    logging.getLogger(SERVER_LOG).addFilter(CutShort())
