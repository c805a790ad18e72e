"""Two processes with KV memory on one device, and hand-overs of all of it by NIXL."""

import multiprocessing
import select
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import torch
from torch import Tensor

from bench.transfer.memory import FINGERPRINT
from engine.api import KvRegion
from kv_transfer.api import Sealed
from kv_transfer.checking import CheckLevel
from kv_transfer.factory import KvMemory, KvPort, build_connector
from kv_transfer.layout import KvLayout
from kv_transfer.thread.threaded import Connector

HERE = "127.0.0.1"
STARTING_S, PATIENCE_S = 60.0, 20.0
KEY = 0x5EED  # seed of the source's contents


@dataclass(slots=True)
class HandoverPair:
    """The sink's side, and a pipe to the source's process."""

    memory: Tensor
    connector: Connector
    process: BaseProcess
    pipe: Connection
    numbers: "count[int]"

    @classmethod
    def open(
        cls, device: torch.device, blocks: int, block_bytes: int, level: str
    ) -> "HandoverPair":
        """Open both sides with `blocks` blocks, and checksums as in --kv-checksum.

        Raises RuntimeError if the source does not start.
        """
        spawned, (ours, theirs) = multiprocessing.get_context("spawn"), multiprocessing.Pipe()
        settings = theirs, str(device), (blocks, block_bytes), level
        process = spawned.Process(target=serve, args=settings, daemon=True)
        process.start()
        theirs.close()
        memory = torch.zeros(blocks, block_bytes, dtype=torch.uint8, device=device)
        connector = connect("sink", memory, level)
        if not ours.poll(STARTING_S) or ours.recv() != "ready":
            raise RuntimeError("the source's process did not start")
        return cls(memory, connector, process, ours, count())

    def hand_over(self) -> Tensor:
        """Transfer all blocks, from offer to arrival; raises RuntimeError if that fails."""
        self.pipe.send(str(next(self.numbers)))
        service, sink = self.connector.service, self.connector.sink
        if not self.pipe.poll(PATIENCE_S):
            raise RuntimeError("the source offers nothing")
        sink.pull(self.pipe.recv(), range(len(self.memory)))
        while True:
            if not any(select.select([service.news_fd], [], [], PATIENCE_S)):
                raise RuntimeError("nothing arrives")
            service.clear_news()
            for arrived in sink.poll():
                if arrived.error is not None:
                    raise arrived.error
                return self.memory

    def twin(self) -> Tensor:
        """The contents that must have arrived."""
        return content(self.memory)

    def close(self) -> None:
        """Free the memory of both processes; kills the source if it does not end."""
        with suppress(OSError):  # the source has ended already
            self.pipe.send(None)
        self.connector.stop()
        self.process.join(PATIENCE_S)
        self.process.kill()


def connect(name: str, memory: Tensor, level: str) -> Connector:
    """A started connector over this memory."""
    blocks, block_bytes = memory.shape
    region = KvRegion(memory.data_ptr(), block_bytes, blocks, str(memory.device))
    layout = KvLayout("bytes", 1, 1, (block_bytes,))
    kv = KvMemory(FINGERPRINT, layout, [region], CheckLevel.named(level))
    connector = build_connector("nixl", name, kv, KvPort(HERE, 0, HERE))
    connector.start()
    return connector


def content(like: Tensor) -> Tensor:
    """Random bytes, the same in both processes."""
    generator = torch.Generator(like.device).manual_seed(KEY)
    return torch.randint(
        0, 256, like.shape, dtype=torch.uint8, device=like.device, generator=generator
    )


def serve(pipe: Connection, device: str, size: tuple[int, int], level: str) -> None:
    """The source: offers all blocks under each name that it receives, until it gets None."""
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
    memory = torch.empty(size, dtype=torch.uint8, device=device)
    memory.copy_(content(memory))
    if memory.is_cuda:
        torch.cuda.synchronize(memory.device)
    connector = connect("source", memory, level)
    pipe.send("ready")
    while (name := pipe.recv()) is not None:
        source = connector.source
        ticket = source.offer(name)
        source.extend(ticket.ticket_id, range(size[0]))
        source.seal(ticket.ticket_id, Sealed(size[0], 0))
        pipe.send(ticket)
        source.poll()
    connector.stop()
