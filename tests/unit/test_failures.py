"""The failure that counts, out of a group of tasks."""

import asyncio

from node.failures import first_of


def test_it_is_found_however_deep() -> None:
    wanted = KeyError("wanted")
    inner = BaseExceptionGroup("inner", [asyncio.CancelledError(), wanted, KeyError("later")])
    group = BaseExceptionGroup("outer", [ValueError("another"), inner])
    assert first_of(group, KeyError, TypeError) is wanted


def test_there_may_be_none() -> None:
    assert first_of(ExceptionGroup("outer", [ValueError("another")]), KeyError) is None
