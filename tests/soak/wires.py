"""A man in the middle of all links to the hurt nodes: he cuts them, holds them up, lies.

A hurt node listens on one loopback address and advertises another, where this listens on the
same ports and passes everything on.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from kv_transfer.side_channel.frames import LENGTH_BYTES
from kv_transfer.side_channel.introduction import LONGEST_SAID

BEHIND, FRONT = "127.0.0.1", "127.0.0.2"
PIECE = 64 << 10
HTTP_METHODS = {b"GET", b"HEAD", b"POST", b"DELETE"}
LISTENING, HERE = "0A", "0100007F"  # as /proc/net/tcp has them
SIDE, DATA, HTTP = "side channel", "data", "http"
Taker = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
BROKEN = (OSError, asyncio.IncompleteReadError)


@dataclass(slots=True, eq=False)
class Link:
    """One connection through us; `kind` is known by its first bytes."""

    sockets: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    kind: str = ""

    def cut(self) -> None:
        """Both ends see a reset."""
        for one in self.sockets:
            one.transport.abort()


@dataclass(slots=True)
class Wires:
    """Owns a listener for each port of the nodes behind it, from `follow` to `aclose`."""

    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)  # bytes that were answered, by kind
    _servers: dict[int, asyncio.Server] = field(default_factory=dict)
    _links: set[Link] = field(default_factory=set)
    _held: dict[str, asyncio.Event] = field(default_factory=dict)
    _lies: int = 0

    def __post_init__(self) -> None:
        for kind in (SIDE, DATA, HTTP):
            self._held[kind] = asyncio.Event()
            self._held[kind].set()

    async def listen(self, pids: Iterable[int]) -> None:
        """Listen where these processes do, and nowhere else."""
        ports = listening_ports(pids)
        for port in self._servers.keys() - ports:
            self._servers.pop(port).close()
        for port in ports - self._servers.keys():
            with suppress(OSError):
                self._servers[port] = await asyncio.start_server(
                    self._passer(port), FRONT, port
                )

    async def aclose(self) -> None:
        """Cut everything."""
        for server in self._servers.values():
            server.close()
        self.cut(SIDE, DATA, HTTP)

    def cut(self, *kinds: str) -> None:
        """Every link of these kinds breaks."""
        for link in [link for link in self._links if link.kind in kinds]:
            self.done[f"cut {link.kind}"] += 1
            link.cut()

    async def hold(self, kind: str, seconds: float) -> None:
        """Nothing passes over links of this kind for so long."""
        self._held[kind].clear()
        self.done[f"stall {kind}"] += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._held[kind].set()

    def lie(self, times: int) -> None:
        """One bit of each of the next pieces of KV that pass is wrong."""
        self._lies += times

    def _passer(self, port: int) -> Taker:
        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                behind = await asyncio.open_connection(BEHIND, port)
            except OSError:
                writer.transport.abort()
                return
            link = Link((writer, behind[1]))
            self._links.add(link)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pass(link, reader, behind[1], asked=True))
                    tasks.create_task(self._pass(link, behind[0], writer, asked=False))
            except* BROKEN:
                pass
            finally:
                self._links.discard(link)
                link.cut()

        return take

    async def _pass(
        self,
        link: Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        asked: bool,
    ) -> None:
        while data := await reader.read(PIECE):
            link.kind = link.kind or kind_of(data)
            await self._held[link.kind].wait()
            if self._lies and link.kind == DATA and not asked:
                data = self._spoiled(data)
            self.passed[link.kind] += 0 if asked else len(data)
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("one end has closed")

    def _spoiled(self, data: bytes) -> bytes:
        self._lies -= 1
        self.done["corrupt"] += 1
        wrong = bytearray(data)
        wrong[self.chance.randrange(len(wrong))] ^= 1 << self.chance.randrange(8)
        return bytes(wrong)


def listening_ports(pids: Iterable[int]) -> set[int]:
    """The ports on which these processes listen at BEHIND."""
    inodes = {inode for pid in pids for inode in sockets_of(pid)}
    found = set[int]()
    for table in ("tcp", "tcp6"):  # ZeroMQ listens by the latter
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            address, _, port = words[1].partition(":")
            if (words[3], address[-8:]) == (LISTENING, HERE) and words[9] in inodes:
                found.add(int(port, 16))
    return found


def sockets_of(pid: int) -> list[str]:
    """The inodes of all that a process has open, as /proc/net has them."""
    try:
        files = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []
    found = list[str]()
    for file in files:
        with suppress(OSError):
            if (name := str(file.readlink())).startswith("socket:["):
                found.append(name[8:-1])
    return found


def kind_of(first: bytes) -> str:
    """What a link carries whose client begins so; the TCP mover's secrets are random."""
    if first.partition(b" ")[0] in HTTP_METHODS:
        return HTTP
    said = int.from_bytes(first[:LENGTH_BYTES], "big")  # of the sink's introduction
    return SIDE if said <= LONGEST_SAID else DATA
