"""What workers and their hub say to each other, over a stream socket. Torch-free.

A word is four bytes with its length, then msgpack.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from discovery.registration import Registration

LENGTH_BYTES = 4
LONGEST_WORD = 64 << 20


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One name, and what is written under it; None: it was taken away."""

    kind: str
    name: str
    value: bytes | None


class Heard(msgspec.Struct, frozen=True, array_like=True):
    """The value of a node: its last registration, and when it came (`time.monotonic`)."""

    at: float
    registration: Registration


class Put(msgspec.Struct, frozen=True, tag=True):
    """Worker: write this for all, and say `Stored` when they have it."""

    number: int
    entry: Entry


class Seen(msgspec.Struct, frozen=True, tag=True):
    """Worker: all up to this version is taken in."""

    version: int


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Worker: what do all others say to this?"""

    number: int
    kind: str
    subject: str


class Answer(msgspec.Struct, frozen=True, tag=True):
    """Worker: what was asked by `Question`."""

    number: int
    body: bytes | None


class Farewell(msgspec.Struct, frozen=True, tag=True):
    """Worker: this is what it has counted, and it counts no more."""

    page: bytes


class News(msgspec.Struct, frozen=True, tag=True):
    """Hub: what has changed; with it a worker is at this version."""

    version: int
    entries: Sequence[Entry]


class Stored(msgspec.Struct, frozen=True, tag=True):
    """Hub: what was put is known to all."""

    number: int


class Question(msgspec.Struct, frozen=True, tag=True):
    """Hub: another worker, or the hub itself, asks this."""

    number: int
    kind: str
    subject: str


class Answers(msgspec.Struct, frozen=True, tag=True):
    """Hub: what the others said to an `Ask`."""

    number: int
    bodies: Sequence[bytes]


Up = Put | Seen | Ask | Answer | Farewell
Down = News | Stored | Question | Answers
_encoder = msgspec.msgpack.Encoder()
_from_worker: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
_from_hub: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)


def pack(word: Any) -> bytes:  # noqa: ANN401  any of the above
    """The word with its length before it."""
    body = _encoder.encode(word)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def say(writer: asyncio.StreamWriter, word: Any) -> None:  # noqa: ANN401  any of the above
    """Unless the connection is lost: its reader hears of it, and uvloop would raise here."""
    if not writer.is_closing():
        writer.write(pack(word))


async def read_up(reader: asyncio.StreamReader) -> Up:
    """The next word of a worker; raises IncompleteReadError at the end, or OSError."""
    return _from_worker.decode(await _read(reader))


async def read_down(reader: asyncio.StreamReader) -> Down:
    """The next word of the hub; raises IncompleteReadError at the end, or OSError."""
    return _from_hub.decode(await _read(reader))


@asynccontextmanager
async def talking(
    connection: socket.socket,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Both directions of a connection, which is closed behind it."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _read(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    if length > LONGEST_WORD:
        raise ConnectionError(f"a word of {length} bytes")
    return await reader.readexactly(length)
