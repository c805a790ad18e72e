"""The source process: offers KV blocks, and serves raw NIXL reads and a plain socket."""

import ctypes
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Literal

import msgspec

from bench.transfer.memory import Memory
from bench.transfer.raw import RawNixl
from kv_transfer.api import Outcome, Sealed
from kv_transfer.checking import CheckLevel
from kv_transfer.factory import KvPort, build_connector
from kv_transfer.thread.threaded import Connector
from kv_transfer.ticket import KvTicket

HERE = "127.0.0.1"
Kind = Literal["nixl", "tcp"]
KINDS: tuple[Kind, ...] = ("nixl", "tcp")


class Offer(msgspec.Struct, frozen=True):
    """Offer these blocks, and seal the offer; answered by Offered."""

    kind: Kind
    name: str
    blocks: tuple[int, ...]


class Send(msgspec.Struct, frozen=True):
    """Write that many bytes of the memory to the plain socket; not answered."""

    num_bytes: int


class Drive(msgspec.Struct, frozen=True):
    """Poll the raw agent until the next message; not answered."""


class CopyOn(msgspec.Struct, frozen=True):
    """Copy the memory's first half onto its second until the next message; not answered."""


class End(msgspec.Struct, frozen=True):
    """Stop; answered by the number of offers that were delivered."""


class Ready(msgspec.Struct, frozen=True):
    """The raw agent's metadata, and where the memory is."""

    card: bytes
    address: int


class Offered(msgspec.Struct, frozen=True):
    """The ticket, encoded as in a node call, and the time before it was encoded."""

    ticket: KvTicket
    at: float


def connect(kind: Kind, engine_id: str, memory: Memory) -> Connector:
    """A connector over this memory, not started yet."""
    return build_connector(kind, engine_id, memory.kv, KvPort(HERE, 0, HERE))


def serve(pipe: Connection, size: tuple[int, int, CheckLevel], port: int) -> None:
    """Carry out messages from the pipe until End; `size` has Memory's arguments."""
    memory = Memory(*size)
    connectors = {kind: connect(kind, f"source-{kind}", memory) for kind in KINDS}
    for connector in connectors.values():
        connector.start()
    raw = RawNixl.open("raw-source", memory)
    source = Source(pipe, memory, socket.create_connection((HERE, port)), connectors, raw)
    pipe.send(Ready(raw.card, memory.address))
    while not isinstance(message := pipe.recv(), End):
        source.hear(message)
    for connector in connectors.values():
        connector.stop()
    source.settle()
    pipe.send(source.delivered)


@dataclass(slots=True)
class Source:
    """Owns everything on the source's side for the lifetime of the process."""

    pipe: Connection
    memory: Memory
    plain: socket.socket
    connectors: Mapping[Kind, Connector]
    raw: RawNixl
    delivered: int = 0

    def hear(self, message: Offer | Send | Drive | CopyOn) -> None:
        """Carry out one message."""
        if isinstance(message, Offer):
            self._offer(message)
        elif isinstance(message, Send):
            self.plain.sendall(self.memory.bytes[: message.num_bytes])
        elif isinstance(message, Drive):
            while not self.pipe.poll():
                self.raw.drive()
        else:
            half = self.memory.num_bytes // 2
            while not self.pipe.poll():
                ctypes.memmove(self.memory.address + half, self.memory.address, half)

    def settle(self) -> None:
        """Count what was delivered since the last call."""
        for connector in self.connectors.values():
            outcomes = [settled.outcome for settled in connector.source.poll()]
            self.delivered += outcomes.count(Outcome.DELIVERED)

    def _offer(self, offer: Offer) -> None:
        source, num_tokens = self.connectors[offer.kind].source, len(offer.blocks)
        since = time.perf_counter()
        ticket = source.offer(offer.name)
        source.extend(ticket.ticket_id, offer.blocks)
        source.seal(ticket.ticket_id, Sealed(num_tokens, 0))
        self.pipe.send_bytes(msgspec.json.encode(Offered(ticket, since)))
        self.settle()
