"""A request that its server cancels is no reason for a traceback; any other failure is."""

import asyncio
import logging

import pytest

from api.shutdown_logging import CancelledRequestFilter


def said_of(failure: BaseException) -> str:
    with pytest.raises(type(failure)) as caught:
        raise failure
    error = caught.type, caught.value, caught.tb
    text = "Exception in ASGI application\n"  # uvicorn's
    record = logging.LogRecord("server", logging.ERROR, "", 0, text, None, error)
    assert CancelledRequestFilter().filter(record)
    return logging.Formatter("%(levelname)s %(message)s").format(record)


def test_one_that_was_cancelled_is_told_in_a_line() -> None:
    said = said_of(asyncio.CancelledError("shutdown"))
    assert said == "WARNING a request was cut off, because this process ends"


@pytest.mark.parametrize("failure", [ValueError("x"), RuntimeError("y")])
def test_one_that_failed_is_told_in_full(failure: Exception) -> None:
    assert said_of(failure).startswith("ERROR Exception in ASGI application")
    assert "Traceback" in said_of(failure)
