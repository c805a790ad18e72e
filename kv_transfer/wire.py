"""The side channel's messages: what a sink and a source say to each other. msgpack, typed.

    sink                                   source
    Hello ───────────────────────────────▶ (checks fingerprint and layout)
          ◀─────────────────────────────── Welcome: how to reach its memory; or Refused; or
                                           TurnedAway, and the connection ends (introduction.py)
    Look(what I know) ───────────────────▶ opens, or renews, the lease; or Stranger
          ◀─────────────────────────────── News: what is new; also unasked, as it comes
    … a Look every BEAT_S is the heartbeat; its News is the source's …
    Settle ──────────────────────────────▶
          ◀─────────────────────────────── Confirmed: the lease was open; or Gone
    Leave ───────────────────────────────▶ (instead of Settle) for another sink to look

    Drive ───────────────────────────────▶ (reads may need the source's help: nixl.py)
    Ask(keys of blocks) ─────────────────▶ (a sink without a ticket: ledger/pending_loans.py)
          ◀─────────────────────────────── Lent: a ticket for those that are here

Every message but Settle may be lost or repeated without harm: a Look says what it knows. A
sink that was not told its ticket's name asks by another `key`, the request's; that name may
pass on to a newer offer, so `ticket_id` says which one is meant where it is not the key. `pull`
numbers a sink's pulls: of two by one key the later has the higher number, and answers bring it
back. So nothing that is said of one is taken for the other, however late it comes.
Nothing that comes in is ever unpickled.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import msgspec

from kv_transfer.api import Sealed
from kv_transfer.checking import CheckLevel
from kv_transfer.layout import KvLayout
from kv_transfer.regions import RemoteRegion

BEAT_S = 0.25
SILENCE_S = 1.2
DRIVEN_S = 0.05  # from one Drive on; while a read needs it, it is said more often
Block = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""The number of a block: no memory has so many that arithmetic with it could overflow."""
Line = Annotated[str, msgspec.Meta(max_length=2048, pattern=r"\A[ -~]*\Z")]
"""What may be logged, whoever says it."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A sink introduces itself, once per connection.

    `level`: how carefully it wants to look at what it reads. The source may want more.
    """

    fingerprint: str
    layout: KvLayout
    level: CheckLevel = CheckLevel.OFF


class Look(msgspec.Struct, frozen=True, tag=True):
    """Open `key` or keep it open, and tell me what comes after its first `known` blocks.

    `engine_id` is the source that the ticket is of; None where the sink was not told.
    """

    key: str
    engine_id: str | None
    known: int
    pull: int = 0


class Settle(msgspec.Struct, frozen=True, tag=True):
    """The copy is done: did it count?"""

    key: str
    ticket_id: str | None = None
    pull: int = 0


class Abandon(msgspec.Struct, frozen=True, tag=True):
    """The KV is not wanted any more."""

    key: str
    ticket_id: str | None = None


class Leave(msgspec.Struct, frozen=True, tag=True):
    """This sink will not have the KV, another may: it is as if nobody had asked yet."""

    key: str
    ticket_id: str | None = None
    pull: int = 0


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Does your prefix cache have these blocks? `name` comes back with the answer."""

    name: str
    engine_id: str
    keys: tuple[bytes, ...]


class Drive(msgspec.Struct, frozen=True, tag=True):
    """What this sink reads may not get on by itself: poll your agent for it, for DRIVEN_S."""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Where the memory is; `cards` has what the data path needs, one for each rank."""

    engine_id: str
    fingerprint: str
    layout: KvLayout
    regions: tuple[RemoteRegion, ...]
    cards: tuple[bytes, ...]
    machine: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """No KV of ours fits you."""

    reason: Line


class TurnedAway(msgspec.Struct, frozen=True, tag=True):
    """The last word on a connection: it was not introduced as this source wants it."""

    reason: Line


class Stranger(msgspec.Struct, frozen=True, tag=True):
    """We were never introduced, or it is long ago: say Hello, then look again."""

    key: str
    pull: int = 0


class News(msgspec.Struct, frozen=True, tag=True):
    """From block number `start` on, these are final; `sealed` with the last of them.

    `sums` has the checksum of each of so many `slots` of each, unless `level` is OFF.
    """

    key: str
    start: int
    blocks: tuple[Block, ...]
    sealed: Sealed | None = None
    sums: tuple[int, ...] = ()
    level: CheckLevel = CheckLevel.OFF
    ticket_id: str | None = None
    pull: int = 0
    slots: Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)] = 1


class Gone(msgspec.Struct, frozen=True, tag=True):
    """There is no open lease of this name."""

    key: str
    reason: str
    pull: int = 0


class Lent(msgspec.Struct, frozen=True, tag=True):
    """The first `num_blocks` of what was asked for are on offer; None: nothing is."""

    name: str
    ticket_id: str | None = None
    num_blocks: int = 0


class Confirmed(msgspec.Struct, frozen=True, tag=True):
    """The lease was open until now, and is settled."""

    key: str
    ticket_id: str | None = None
    pull: int = 0


FromSink = Hello | Look | Settle | Abandon | Leave | Ask | Drive
FromSource = Welcome | Refused | TurnedAway | Stranger | News | Gone | Confirmed | Lent

_encoder = msgspec.msgpack.Encoder()
_from_sink: msgspec.msgpack.Decoder[FromSink] = msgspec.msgpack.Decoder(FromSink)
_from_source: msgspec.msgpack.Decoder[FromSource] = msgspec.msgpack.Decoder(FromSource)


def encode(message: FromSink | FromSource) -> bytes:
    """One frame."""
    return _encoder.encode(message)


def decode_from_sink(frame: bytes) -> FromSink:
    """Read a frame that a sink sent; raises msgspec.DecodeError, whatever it is."""
    with one_error():
        return _from_sink.decode(frame)


def decode_from_source(frame: bytes) -> FromSource:
    """Read a frame that a source sent; raises msgspec.DecodeError, whatever it is."""
    with one_error():
        return _from_source.decode(frame)


@contextmanager
def one_error() -> Generator[None]:
    """DecodeError: text that is no UTF-8 and endless nesting have errors of their own."""
    try:
        yield
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
