"""Several ranks of one engine as threads of one process."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

from torch._C._distributed_c10d import TCPStore

from engine.loading import load_engine, load_follower
from engine.ranks.channel import Channel
from engine.ranks.links import FollowerLinks, LeaderLink
from engine.running.accelerator import Accelerator
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine

HOST = "127.0.0.1"


@contextmanager
def ranked(
    folder: Path,
    ranks: int,
    accelerators: Sequence[Accelerator | None] = (),
    **settings: object,
) -> Iterator[TorchEngine]:
    """The engine that leads, as tests.fakes.driver.load makes one; the others end with it.

    `accelerators`: one for each rank, where they are to have any.
    """
    accelerators = accelerators or [None] * ranks
    chosen: dict[str, Any] = {"dtype": "float32", "threads": ranks, **settings}
    config = EngineConfig(model=str(folder), tensor_parallel_size=ranks, **chosen)
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    channels, fds, threads = list[Channel](), list[int](), list[Thread]()
    with ExitStack() as opened:
        for rank in range(1, ranks):
            ours, theirs = (opened.enter_context(one) for one in socket.socketpair())
            fds.append(os.memfd_create("kv"))
            opened.callback(os.close, fds[-1])
            post = LeaderLink(Channel(theirs), TCPStore(HOST, store.port), fds[-1])
            threads.append(
                Thread(target=_follow, args=(config, rank, post, accelerators[rank]))
            )
            channels.append(Channel(ours))
        for thread in threads:
            thread.start()
        try:
            yield load_engine(config, FollowerLinks(channels, store, fds), accelerators[0])
        finally:
            for channel in channels:
                channel.socket.close()
            for thread in threads:
                thread.join()


def _follow(
    config: EngineConfig, rank: int, post: LeaderLink, accelerator: Accelerator | None
) -> None:
    load_follower(config, rank, post, accelerator, transfer_bytes=0).run()
