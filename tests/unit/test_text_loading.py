"""A node's tokenizer is loaded in a thread that the end of the process does not wait for."""

import asyncio
import threading

import pytest

from node.text_loading import in_daemon_thread

PATIENCE_S = 20.0  # only what is broken waits for that long


async def test_it_returns_and_raises_what_the_work_does() -> None:
    assert await in_daemon_thread(lambda: 7) == 7
    with pytest.raises(OSError, match="no such hub"):
        await in_daemon_thread(_fail)


def test_a_process_ends_while_its_text_is_loading() -> None:
    hub_answers, waited = threading.Event(), list[bool]()

    async def node() -> None:
        async def engine() -> None:
            raise RuntimeError("the engine cannot start")

        loading = in_daemon_thread(lambda: waited.append(hub_answers.wait(PATIENCE_S)))
        await asyncio.gather(loading, engine())

    try:
        with pytest.raises(RuntimeError, match="cannot start"):
            asyncio.run(node())
        assert not waited
    finally:
        hub_answers.set()


def _fail() -> None:
    raise OSError("no such hub")
