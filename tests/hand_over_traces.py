"""`python -m tests.hand_over_traces` writes the traces of docs/reference/hand-over-traces.md.

They are what the books of kv_transfer/ledger/ do in the scenes below, over the connector inside
one process (kv_transfer/local/), on a clock that a scene sets. The text around them is written
by hand. A house test compares page and scenes.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from engine.api import KvRegion
from kv_transfer.api import Sealed
from kv_transfer.local.connector import LocalSink, LocalSource
from kv_transfer.ticket import LEASE_S, KvTicket
from kv_transfer.wire import (
    BEAT_S,
    SILENCE_S,
    FromSink,
    FromSource,
    Hello,
    Leave,
    Look,
    Settle,
    Welcome,
)

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "hand-over-traces.md"
AT = "p0", 1
BLOCKS, BLOCK_BYTES = 16, 4
STEPS = 4  # of a sink at one time: what it is told in one it may answer in the next
UNTOLD = {"engine_id", "slots", "level"}
TABLE = "| s | who | what |\n"


@dataclass
class _Traced(LocalSource):
    """Tells `heard` who its sink is, the message, and whether that came from the sink."""

    heard: Callable[[str, FromSink | FromSource, bool], None] = lambda *_: None

    def deliver(self, peer: bytes, message: FromSink) -> list[FromSource]:
        self.heard(peer.decode(), message, True)
        return super().deliver(peer, message)

    def take_messages(self, peer: bytes) -> list[FromSource]:
        said = super().take_messages(peer)
        for one in said:
            self.heard(peer.decode(), one, False)
        return said


@dataclass
class Scene:
    """One source and some sinks; `rows` has what they do, and what they say."""

    now: float = 0.0
    memories: list[bytearray] = field(default_factory=list)
    rows: list[tuple[float, str, str]] = field(default_factory=list)
    sinks: dict[str, LocalSink] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = _Traced("p0", AT, self._regions(), "same", lambda: self.now)
        self.source.heard = self._heard

    def sink(self, name: str) -> LocalSink:
        """The sink of this name."""
        if name not in self.sinks:
            one = LocalSink({AT: self.source}, self._regions(), "same", lambda: self.now)
            one.name, one.book.beat_s = name.encode(), BEAT_S
            self.sinks[name] = one
        return self.sinks[name]

    def note(self, who: str, text: str) -> None:
        """What one of them does, or is told by its engine."""
        self.rows.append((self.now, who, f"*{text}*"))

    def offer(self, name: str, outer_id: str | None = None) -> KvTicket:
        """See KvSource.offer."""
        ticket = self.source.offer(name, outer_id)
        asked = f"outer id `{outer_id}`" if outer_id else "no outer id"
        self.note("p0", f"offers `{ticket.ticket_id}`, {asked}")
        return ticket

    def fill(self, ticket: KvTicket, *blocks: int) -> None:
        """These blocks are final; a sink is told at once."""
        self.note("p0", f"finishes {_blocks(blocks)} of `{ticket.ticket_id}`")
        self.source.extend(ticket.ticket_id, blocks)
        self.source.book.flush()

    def seal(self, ticket: KvTicket) -> None:
        """All blocks are; a sink is told at once."""
        self.note("p0", f"samples the first token: `{ticket.ticket_id}` is sealed")
        self.source.seal(ticket.ticket_id, Sealed(10, 42))
        self.source.book.flush()

    def pull(self, name: str, ticket: KvTicket, *into: int, steps: int = STEPS) -> None:
        """See KvSink.pull; then the sink does what there is to do, or so many steps."""
        self.note(name, f"pulls `{ticket.ticket_id}` into {_blocks(into)}")
        self.sink(name).pull(ticket, into)
        self._turn(name, steps)

    def hold(self, name: str, ticket: KvTicket) -> None:
        """See KvSink.hold."""
        self.note(name, f"holds `{ticket.ticket_id}`")
        self.sink(name).hold(ticket)
        self._turn(name)

    def leave(self, name: str, ticket: KvTicket) -> None:
        """See KvSink.release_claim."""
        self.note(name, f"leaves `{ticket.ticket_id}` to others")
        self.sink(name).release_claim(ticket)

    def beat(self, *names: str, after: float = BEAT_S) -> None:
        """Some time later these sinks do what there is to do; then the source does."""
        self.now += after
        for name in names:
            self._turn(name)
        for settled in self.source.poll():
            self.note("p0", f"`{settled.ticket_id}` ends as {settled.outcome}")

    def _turn(self, name: str, steps: int = STEPS) -> None:
        for _ in range(steps):
            self._step(name)

    def _step(self, name: str) -> None:
        """A sink hears what was said unasked, then reads, then speaks."""
        sink, begin = self.sink(name), len(self.rows)
        before, arrived = sink.blocks_copied, sink.poll()
        if count := sink.blocks_copied - before:
            said = (
                n for n in range(begin, len(self.rows)) if self.rows[n][1] == f"{name} → p0"
            )
            place = next(said, len(self.rows))
            self.rows.insert(place, (self.now, name, f"*reads {count} of its blocks*"))
        for one in arrived:
            why = f"is void: {one.error}" if one.error else "has arrived, and counts"
            self.note(name, f"`{one.ticket_id}` {why}")

    def late(self, name: str, message: FromSink) -> None:
        """A message that was on its way for long."""
        self.note(name, "what it said earlier comes only now:")
        self.source.deliver(name.encode(), message)

    def _regions(self) -> list[KvRegion]:
        self.memories.append(bytearray(BLOCKS * BLOCK_BYTES))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.memories[-1]))
        return [KvRegion(address, BLOCK_BYTES, BLOCKS, "cpu")]

    def _heard(self, peer: str, message: FromSink | FromSource, to_source: bool) -> None:
        way = f"{peer} → p0" if to_source else f"p0 → {peer}"
        self.rows.append((self.now, way, _shown(message)))


def _blocks(blocks: tuple[int, ...]) -> str:
    return f"{'block' if len(blocks) == 1 else 'blocks'} {', '.join(map(str, blocks))}"


def _shown(message: FromSink | FromSource) -> str:
    name = type(message).__name__
    if isinstance(message, Hello | Welcome):
        return f"**{name}**"
    said = msgspec.structs.asdict(message)
    fields = {key: value for key, value in said.items() if key not in UNTOLD and value}
    if isinstance(message, Look):
        fields["known"] = message.known
    return f"**{name}** {', '.join(_field(*one) for one in fields.items())}".rstrip()


def _field(name: str, value: object) -> str:
    if isinstance(value, Sealed):
        return f"{name} ({value.num_tokens} tokens, first token {value.first_token})"
    if isinstance(value, tuple):
        return _blocks(value)
    return f"{name} {value}" if isinstance(value, int) else f"{name} `{value}`"


def two_chunks() -> Scene:
    scene = Scene()
    ticket = scene.offer("r1")
    scene.pull("d0", ticket, 7, 8, 9)
    scene.now += 0.1
    scene.fill(ticket, 4, 5)
    scene.beat("d0", after=0)
    scene.beat("d0", after=0.15)
    scene.fill(ticket, 2)
    scene.seal(ticket)
    scene.beat("d0", after=0)
    return scene


def another_takes_over() -> Scene:
    scene = Scene()
    ticket = scene.offer("r1")
    scene.fill(ticket, 4)
    scene.pull("d0", ticket, 7, 8)
    scene.now += 0.1
    scene.pull("d1", ticket, 3, 5)
    scene.beat("d0", after=0.05)
    scene.late("d0", Look(ticket.ticket_id, "p0", 1))
    scene.fill(ticket, 5)
    scene.seal(ticket)
    scene.beat("d1", after=0)
    return scene


def left_and_taken_again() -> Scene:
    scene = Scene()
    ticket = scene.offer("r1")
    scene.fill(ticket, 4)
    scene.seal(ticket)
    scene.hold("d0", ticket)
    scene.now += 0.1
    scene.leave("d0", ticket)
    scene.late("d0", Look(ticket.ticket_id, "p0", 1))
    scene.beat("d0", after=SILENCE_S)
    scene.pull("d0", ticket, 7, steps=1)
    scene.late("d0", Leave(ticket.ticket_id))
    scene.beat("d0", after=0)
    return scene


def one_name_two_offers() -> Scene:
    scene = Scene()
    named = KvTicket("chat-1", None, *AT, None)
    first = scene.offer("chat-1~1", "chat-1")
    scene.fill(first, 4)
    scene.pull("d0", named, 7)
    scene.now += 0.1
    second = scene.offer("chat-1~2", "chat-1")
    scene.beat("d0", after=0)
    scene.late("d0", Look("chat-1", None, 1))
    scene.fill(second, 6)
    scene.seal(second)
    scene.pull("d0", named, 8, steps=1)
    scene.late("d0", Settle("chat-1", first.ticket_id))
    scene.beat("d0", after=0)
    scene.note("p0", "is told to give up the first request")
    scene.source.withdraw(first.ticket_id)
    scene.beat(after=0)
    return scene


def nobody_asks() -> Scene:
    scene = Scene()
    unwanted, wanted = scene.offer("r1"), scene.offer("r2")
    scene.fill(wanted, 5)
    scene.fill(unwanted, 4)
    scene.seal(unwanted)
    scene.pull("d0", wanted, 7, 8)
    scene.beat(after=SILENCE_S)
    scene.beat("d0", after=BEAT_S)
    scene.beat(after=LEASE_S - scene.now)
    scene.pull("d1", unwanted, 3)
    return scene


SCENES: dict[str, Callable[[], Scene]] = {
    "Two chunks": two_chunks,
    "Another sink takes over": another_takes_over,
    "Left, and taken again": left_and_taken_again,
    "One name, two offers": one_name_two_offers,
    "Nobody asks": nobody_asks,
}


def page(written: str) -> str:
    """`written` with the traces that the code gives now, each at the end of its section."""
    for title, play in SCENES.items():
        head, found, rest = written.partition(f"\n## {title}\n")
        assert found, f"no section {title}"
        section, begins, behind = rest.partition("\n## ")
        text = section.partition(TABLE)[0].rstrip()
        trace = "".join(_table(play().rows))
        written = f"{head}{found}{text}\n\n{trace}{begins}{behind}"
    return written


def _table(rows: Iterable[tuple[float, str, str]]) -> Iterator[str]:
    yield TABLE + "|---|---|---|\n"
    for now, who, what in rows:
        yield f"| {now:.2f} | {who} | {what} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
