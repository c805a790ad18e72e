"""The failure that counts, out of a group of tasks."""

import asyncio

from node.failures import first_failure


def test_it_is_found_however_deep() -> None:
    wanted = KeyError("wanted")
    inner = BaseExceptionGroup("inner", [asyncio.CancelledError(), wanted, KeyError("later")])
    group = BaseExceptionGroup("outer", [ValueError("another"), inner])
    assert first_failure(group, KeyError, TypeError) is wanted


def test_there_may_be_none() -> None:
    assert first_failure(ExceptionGroup("outer", [ValueError("another")]), KeyError) is None
