"""The side channel's messages between a sink and a source. msgpack, typed.

    sink                                   source
    Hello ───────────────────────────────▶ (checks fingerprint and layout)
          ◀─────────────────────────────── Welcome: how to reach its memory; or Refused; or
                                           TurnedAway, and the connection ends (introduction.py)
    Look(what is known) ─────────────────▶ opens, or renews, the lease; or Stranger
          ◀─────────────────────────────── News: what is new; also unasked, as it comes
    … a Look every BEAT_S is the sink's heartbeat; the answering News is the source's …
    Settle ──────────────────────────────▶
          ◀─────────────────────────────── Confirmed: the lease was open; or Gone
    Leave ───────────────────────────────▶ (instead of Settle) lets another sink have it
    Abandon ─────────────────────────────▶ (instead of Settle) the offer is over

    Drive ───────────────────────────────▶ (reads may need the source's help: nixl.py)
    Ask(keys of blocks) ─────────────────▶ (a sink without a ticket: ledger/pending_loans.py)
          ◀─────────────────────────────── Lent: a ticket for those that are here

Every message but Settle may be lost or repeated without harm, since a Look says what the sink
knows. A sink that was not told its ticket's id asks by another `key`, the request's outer id;
that name may pass to a newer offer, so `ticket_id` says which offer is meant if it is not the
key. `pull` numbers a sink's pulls: of two with one key the later has the higher number, and
answers repeat it. So no message about one pull is taken for the other, however late it comes:
each side knows the pulls that are over (ledger/ended_pulls.py is the source's memory of them).
docs/reference/hand-over-traces.md shows whole hand-overs. Nothing that is received is ever
unpickled.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import msgspec

from kv_transfer.api import Sealed
from kv_transfer.checking import CheckLevel
from kv_transfer.layout import KvLayout
from kv_transfer.regions import RemoteRegion
from kv_transfer.ticket import LONGEST_NAME

BEAT_S = 0.25
SILENCE_S = 1.2
DRIVEN_S = 0.05  # after a Drive; while a read needs it, Drive is sent more often
Block = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""The number of a block; so small that arithmetic with it cannot overflow."""
Key = Annotated[str, msgspec.Meta(max_length=2 * LONGEST_NAME)]
"""The id of a ticket or the outer id of a request; the source remembers thousands of them."""
Number = Annotated[int, msgspec.Meta(ge=0)]
Line = Annotated[str, msgspec.Meta(max_length=2048, pattern=r"\A[ -~]*\Z")]
"""Text that is safe to log, whoever sends it."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    """A sink introduces itself, once per connection.

    `level`: how thoroughly it wants to check what it reads. The source may require more.
    """

    fingerprint: str
    layout: KvLayout
    level: CheckLevel = CheckLevel.OFF


class Look(msgspec.Struct, frozen=True, tag=True):
    """Open `key` or keep it open, and send what comes after its first `known` blocks.

    `engine_id` is the source that issued the ticket; None if the sink was not told.
    """

    key: Key
    engine_id: str | None
    known: Number
    pull: Number = 0


class Settle(msgspec.Struct, frozen=True, tag=True):
    """The copy is done: does it count?"""

    key: Key
    ticket_id: str | None = None
    pull: Number = 0


class Abandon(msgspec.Struct, frozen=True, tag=True):
    """The KV is no longer wanted; `pull` is None where none was begun."""

    key: Key
    ticket_id: str | None = None
    pull: Number | None = None


class Leave(msgspec.Struct, frozen=True, tag=True):
    """This sink does not take the KV, but another one may: as if no sink had asked yet."""

    key: Key
    ticket_id: str | None = None
    pull: Number = 0


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Asks whether the prefix cache has these blocks; the answer repeats `name`."""

    name: str
    engine_id: str
    keys: tuple[bytes, ...]


class Drive(msgspec.Struct, frozen=True, tag=True):
    """Reads of this sink may not progress by themselves: poll your agent, for DRIVEN_S."""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Where the memory is; `cards` has what the data path needs, one for each rank."""

    engine_id: str
    fingerprint: str
    layout: KvLayout
    regions: tuple[RemoteRegion, ...]
    cards: tuple[bytes, ...]
    machine: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The source's KV does not fit this sink."""

    reason: Line


class TurnedAway(msgspec.Struct, frozen=True, tag=True):
    """The last message on a connection: its introduction was not accepted."""

    reason: Line


class Stranger(msgspec.Struct, frozen=True, tag=True):
    """The sink is unknown or was forgotten: it has to say Hello, then send its Look again."""

    key: str
    pull: int = 0


class News(msgspec.Struct, frozen=True, tag=True):
    """Blocks that are final, from block number `start` on; `sealed` comes with the last of
    them.

    `sums` has one checksum for each of the `slots` of each block, unless `level` is OFF.
    `state_sums` come with `sealed`, where a state is read in pieces: one for each of its slots.
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
    state_sums: tuple[int, ...] = ()


GIVEN_BACK = "its sink gave it back"
"""The reason of a Gone for a pull whose Abandon met an open lease of its own."""


class Gone(msgspec.Struct, frozen=True, tag=True):
    """There is no open lease by this name."""

    key: str
    reason: str
    pull: int = 0


class Lent(msgspec.Struct, frozen=True, tag=True):
    """The first `num_blocks` of those asked for are on offer; no ticket id: none is."""

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
    """Encode as one frame."""
    return _encoder.encode(message)


def decode_from_sink(frame: bytes) -> FromSink:
    """Read a frame that a sink sent; raises msgspec.DecodeError whatever the error is."""
    with one_error():
        return _from_sink.decode(frame)


def decode_from_source(frame: bytes) -> FromSource:
    """Read a frame that a source sent; raises msgspec.DecodeError whatever the error is."""
    with one_error():
        return _from_source.decode(frame)


@contextmanager
def one_error() -> Generator[None]:
    """Turn errors from invalid UTF-8 and endless nesting into DecodeError."""
    try:
        yield
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
