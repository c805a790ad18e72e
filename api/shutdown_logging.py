"""Logs requests that a shutdown cancels in one line, without a traceback."""

import asyncio
import logging

SERVER_LOG = "uvicorn.error"


class CancelledRequestFilter(logging.Filter):
    """Removes the traceback from a server's log record of a cancelled request."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Never drops a record."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            record.exc_info = record.exc_text = None
        return True


def hide_cancellation_tracebacks() -> None:
    """Install the filter; once, before serving: requests are cancelled only at shutdown."""
    logging.getLogger(SERVER_LOG).addFilter(CancelledRequestFilter())
