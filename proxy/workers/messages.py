"""Messages between a proxy worker and the hub in its parent, over a Unix stream socket.

A worker shares state and asks the other workers questions; the hub relays both:

    PutRequest      worker -> hub      store an entry for all workers
    PutAck          hub -> worker      all workers have that entry
    StateUpdate     hub -> worker      the entries that changed
    VersionAck      worker -> hub      the worker has applied them
    BroadcastQuery  worker -> hub      ask all other workers
    WorkerQuery     hub -> worker      the question, once for each of them
    WorkerReply     worker -> hub      the answer of one worker
    BroadcastReply  hub -> worker      all answers together
    FinalMetrics    worker -> hub      the metrics of a worker that ends

A frame is a length of four bytes (big-endian) and a message in msgpack. `number` ties a reply
to its request; each side numbers its own requests. Torch-free.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import msgspec

from discovery.registration import Registration

LENGTH_PREFIX_BYTES = 4
MAX_MESSAGE_BYTES = 64 << 20


class SharedEntry(msgspec.Struct, frozen=True, array_like=True):
    """One value of the shared state; None means that it was deleted."""

    kind: str
    name: str
    value: bytes | None


class ReceivedRegistration(msgspec.Struct, frozen=True, array_like=True):
    """A node's last registration, and when the hub received it (`time.monotonic`, seconds)."""

    at: float
    registration: Registration


class PutRequest(msgspec.Struct, frozen=True, tag="Put"):
    """Worker to hub: store this for all workers; PutAck says that they have it."""

    number: int
    entry: SharedEntry


class VersionAck(msgspec.Struct, frozen=True, tag="Seen"):
    """Worker to hub: every change up to this version is applied."""

    version: int


class BroadcastQuery(msgspec.Struct, frozen=True, tag="Ask"):
    """Worker to hub: ask all other workers; BroadcastReply answers it."""

    number: int
    kind: str
    subject: str


class WorkerReply(msgspec.Struct, frozen=True, tag="Answer"):
    """Worker to hub: the answer to a WorkerQuery; None: it has no answer."""

    number: int
    body: bytes | None


class FinalMetrics(msgspec.Struct, frozen=True, tag="Farewell"):
    """Worker to hub: the metrics page of a worker that ends and counts no more."""

    page: bytes


class StateUpdate(msgspec.Struct, frozen=True, tag="News"):
    """Hub to worker: the entries that changed; they bring the worker to `version`."""

    version: int
    entries: Sequence[SharedEntry]


class PutAck(msgspec.Struct, frozen=True, tag="Stored"):
    """Hub to worker: all workers have the entry of that PutRequest."""

    number: int


class WorkerQuery(msgspec.Struct, frozen=True, tag="Question"):
    """Hub to worker: another worker, or the hub itself, asks this."""

    number: int
    kind: str
    subject: str


class BroadcastReply(msgspec.Struct, frozen=True, tag="Answers"):
    """Hub to worker: the other workers' answers to a BroadcastQuery."""

    number: int
    bodies: Sequence[bytes]


FromWorker = PutRequest | VersionAck | BroadcastQuery | WorkerReply | FinalMetrics
FromHub = StateUpdate | PutAck | WorkerQuery | BroadcastReply
_encoder = msgspec.msgpack.Encoder()
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
_from_hub: msgspec.msgpack.Decoder[FromHub] = msgspec.msgpack.Decoder(FromHub)


def encode_frame(message: FromWorker | FromHub) -> bytes:
    """The message, preceded by its length."""
    body = _encoder.encode(message)
    return len(body).to_bytes(LENGTH_PREFIX_BYTES, "big") + body


def send_message(writer: asyncio.StreamWriter, message: FromWorker | FromHub) -> None:
    """Queue it for sending; a lost connection is ignored, since its reader raises.

    The check is there because uvloop raises on writing to a closed connection.
    """
    if not writer.is_closing():
        writer.write(encode_frame(message))


async def read_from_worker(reader: asyncio.StreamReader) -> FromWorker:
    """A worker's next message; raises IncompleteReadError at the end, or OSError."""
    return _from_worker.decode(await _read_frame(reader))


async def read_from_hub(reader: asyncio.StreamReader) -> FromHub:
    """The hub's next message; raises IncompleteReadError at the end, or OSError."""
    return _from_hub.decode(await _read_frame(reader))


@asynccontextmanager
async def message_streams(
    connection: socket.socket,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Reader and writer of a connection, which is closed at the end of the block."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    length = int.from_bytes(await reader.readexactly(LENGTH_PREFIX_BYTES), "big")
    if length > MAX_MESSAGE_BYTES:
        raise ConnectionError(f"a message of {length} bytes")
    return await reader.readexactly(length)
