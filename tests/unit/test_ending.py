"""A request that its server cancels is no reason for a traceback; any other failure is."""

import asyncio
import logging

import pytest

from api.shutdown_logging import CancelledRequestFilter


def said_of(failure: BaseException) -> str:
    with pytest.raises(type(failure)) as caught:
        raise failure
    error = caught.type, caught.value, caught.tb
    record = logging.LogRecord("server", logging.ERROR, "", 0, "Exception in app", None, error)
    assert CancelledRequestFilter().filter(record)
    return logging.Formatter().format(record)


def test_one_that_was_cancelled_is_told_in_a_line() -> None:
    assert said_of(asyncio.CancelledError("shutdown")) == "Exception in app"


@pytest.mark.parametrize("failure", [ValueError("x"), RuntimeError("y")])
def test_one_that_failed_is_told_in_full(failure: Exception) -> None:
    assert "Traceback" in said_of(failure)
