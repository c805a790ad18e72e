"""Logs requests that a shutdown cancels in one line, without a traceback."""

import asyncio
import logging

SERVER_LOG = "uvicorn.error"
CUT_OFF = "a request was cut off, because this process ends"


class CancelledRequestFilter(logging.Filter):
    """Says in a server's log record of a cancelled request what happened, instead of uvicorn's
    "Exception in ASGI application" and a traceback.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a record."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            record.exc_info = record.exc_text = None
            record.msg, record.args = CUT_OFF, None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def hide_cancellation_tracebacks() -> None:
    """Install the filter; once, before serving: requests are cancelled only at shutdown."""
    logging.getLogger(SERVER_LOG).addFilter(CancelledRequestFilter())
