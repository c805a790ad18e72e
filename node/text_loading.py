"""Loads a node's tokenizer and text files, beside the engine, in a thread of their own."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from api.text.tokenizing import TextCodec, load_text_codec
from api.text_files import TextParcel
from node.config import NodeConfig
from node.text_files_route import parcel_of

Result = TypeVar("Result")


async def load_text(config: NodeConfig) -> tuple[TextCodec, TextParcel | None]:
    """The codec, and the files for proxies; raises OSError if there is no tokenizer."""
    return await in_daemon_thread(lambda: _loaded(config))


async def in_daemon_thread(work: Callable[[], Result]) -> Result:
    """What the work returns or raises. A process that ends does not wait for it: a hub may
    take minutes to answer, after the engine has failed or the node was told to stop.
    """
    outcome: Future[Result] = Future()
    outcome.set_running_or_notify_cancel()  # from here on nobody cancels it

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  who awaits it gets it
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=run, name="text", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _loaded(config: NodeConfig) -> tuple[TextCodec, TextParcel | None]:
    codec = load_text_codec(config.tokenizer or config.model)
    return codec, parcel_of(config, codec)
