"""Who has a seat and blocks, who waits for them, and who gives way. No batch, no tokens."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.errors import RequestTooLong
from engine.request import RequestId
from engine.scheduling.growth import Growth
from engine.scheduling.kv_manager import KvManager
from engine.scheduling.sequence import Sequence, State
from engine.scheduling.waiting import WaitingLine


@dataclass(frozen=True, slots=True)
class Limits:
    """How much fits in one batch, and how long a sequence may get."""

    max_tokens: int
    max_sequences: int
    max_model_len: int | None = None


@dataclass(slots=True)
class Room:
    """Every sequence that is known is in one of `waiting`, `fetching`, `running`, `reserved`,
    `parked`.

    Who runs or is reserved has a seat, and blocks for all its tokens; who is parked has only
    the blocks. Answers grow, so some blocks stay free for those with a seat (`growth`). Should
    they not suffice, the last in rank goes back to the line: the least urgent, and of those
    the newest. What parks never does, for others may be reading its blocks.
    """

    kv: KvManager
    limits: Limits
    growth: Growth = field(default_factory=Growth)
    waiting: WaitingLine = field(default_factory=WaitingLine)
    fetching: dict[RequestId, Sequence] = field(default_factory=dict)
    running: dict[RequestId, Sequence] = field(default_factory=dict)
    reserved: dict[RequestId, Sequence] = field(default_factory=dict)
    parked: dict[RequestId, Sequence] = field(default_factory=dict)
    known: dict[RequestId, Sequence] = field(default_factory=dict)
    preemptions: int = 0
    loans: int = 0  # blocks that are held for other nodes, see lending.py
    _arrivals: int = 0
    _growing: int = 0  # blocks that those with a seat may still come to need
    _returns: int = 0  # how often a seat or blocks were given back

    def place(self, seq: Sequence) -> None:
        """Give it its number in the order of arrival; for a reservation, of its first try.

        Raises RequestTooLong for what never fits.
        """
        if not seq.place:
            seq.longest = self._longest(seq)
            self._arrivals += 1
            seq.place = self._arrivals

    def know(self, seq: Sequence) -> None:
        """Its id is taken from now on."""
        if seq.request_id in self.known:
            raise ValueError(f"request {seq.request_id} is here already")
        self.known[seq.request_id] = seq

    def take_in(self, seq: Sequence) -> bool:
        """A seat, and blocks for all its tokens; False, and no change, if there is no room.

        Whoever is less urgent gives way if that is enough. Where there was no room there is
        none until some is given back: a look costs as much as the prompt.
        """
        if seq.refused_at == self._returns:
            return False
        self.kv.match(seq, upto=seq.reusable)
        if not self._fits(seq) and not self._push_out(seq):
            self.kv.free(seq)
            seq.refused_at = self._returns
            return False
        self.kv.grow(seq, len(seq.tokens))
        self.kv.restore(seq, upto=seq.reusable)
        seq.fetched = False
        self._growing += self._growth_of(seq)
        return True

    def fetch(self, seq: Sequence) -> bool:
        """Whether it leaves the line, for its KV to be read from disk; it has room, so far.

        It holds neither a seat nor blocks meanwhile, and nobody waits for it. Once is enough:
        what is lost again before it is taken in is computed.
        """
        if not self.kv.has_disk or seq.fetched or seq.refused_at == self._returns:
            return False
        self.kv.match(seq, upto=seq.reusable)
        begun = self._fits(seq) and self.kv.fetch(seq, upto=seq.reusable)
        self.kv.free(seq)
        if begun:
            self.waiting.remove(seq)
            seq.state = State.FETCHING
            self.fetching[seq.request_id] = seq
        return begun

    def line_up(self) -> None:
        """Back to the line, each at its old place, whose KV has come, or took too long."""
        for request_id in self.kv.fetched():
            seq = self.fetching.pop(request_id, None)
            if seq is not None:
                seq.state, seq.fetched = State.WAITING, True
                self.waiting.push(seq)

    def run(self, seq: Sequence) -> None:
        """Seat it among those that run; it was taken in, or reserved."""
        self.reserved.pop(seq.request_id, None)
        seq.state = State.RUNNING
        self.running[seq.request_id] = seq

    def reserve(self, seq: Sequence) -> None:
        """Seat it among those whose KV is on its way; it was taken in."""
        seq.state = State.RESERVED
        self.reserved[seq.request_id] = seq

    def park(self, seq: Sequence) -> None:
        """Its seat is free, its blocks are not."""
        del self.running[seq.request_id]
        seq.state = State.PARKED
        self.parked[seq.request_id] = seq
        self._returns += 1

    def extend(self, seq: Sequence) -> bool:
        """A block for its next token, whoever must give way; False: it was itself."""
        while seq.state is State.RUNNING and not self.try_extend(seq, seq.computed + 1):
            last = max((one for one in self.running.values() if not one.parks), key=_rank)
            self.growth.fell_short()
            self.preempt(last)
        return seq.state is State.RUNNING

    def try_extend(self, seq: Sequence, upto: int) -> bool:
        """The same if it costs nobody anything; False, and no change, if it does."""
        before = len(seq.blocks)
        if not self.kv.grow(seq, upto):
            return False
        self._growing -= len(seq.blocks) - before
        return True

    def preempt(self, seq: Sequence) -> None:
        """Back to the line, to be computed again."""
        self.preemptions += 1
        del self.running[seq.request_id]
        self._give_back(seq)
        seq.state = State.WAITING
        self.waiting.push(seq)

    def leave(self, seq: Sequence) -> None:
        """Forget it wherever it is."""
        del self.known[seq.request_id]
        self.waiting.led(seq)
        self.kv.let_go(seq)
        if seq.state is State.WAITING:
            self.waiting.remove(seq)
        elif seq.state is State.FETCHING:
            del self.fetching[seq.request_id]
        elif seq.state is State.PARKED:
            del self.parked[seq.request_id]
            self._returns += 1
            self.kv.free(seq)
        else:
            seats = self.running if seq.state is State.RUNNING else self.reserved
            del seats[seq.request_id]
            if seq.state is State.RUNNING and seq.produced and not seq.parks:
                self.growth.ended(seq.produced / seq.request.sampling.max_tokens)
            self._give_back(seq)

    def returned(self) -> None:
        """Blocks were given back that nobody here held: who found no room may look again."""
        self._returns += 1

    @property
    def kept_free(self) -> int:
        """Blocks that are not to be spent on anything but the growth of answers."""
        return self.growth.margin(self._growing)

    def check_idle(self) -> None:
        """Raise if nobody is known and something is held all the same; costs nothing."""
        if not self.known and not self.loans:
            self.kv.check_idle()
            assert self._growing == 0, f"{self._growing} blocks are wanted by nobody"

    def _longest(self, seq: Sequence) -> int:
        """How many of its tokens may come to need KV: the last one of an answer does not."""
        answer = 0 if seq.parks or seq.pooling else seq.request.sampling.max_tokens
        longest = max(len(seq.request.prompt) + answer, len(seq.tokens))
        most, room = self.limits.max_model_len, self.kv.num_blocks * self.kv.block_size
        said, param = (
            f"{seq.request_id}: {longest} tokens",
            "input" if seq.pooling else "max_tokens",
        )
        if most is not None and longest > most:
            raise RequestTooLong(f"{said}, the model has {most}", param)
        if longest > room:
            raise RequestTooLong(f"{said} never fit", param)
        return max(longest - 1, len(seq.tokens))

    def _give_back(self, seq: Sequence) -> None:
        """Of those with a seat."""
        self._growing -= self._growth_of(seq)
        self._returns += 1
        self.kv.free(seq)

    def _growth_of(self, seq: Sequence) -> int:
        return self.kv.blocks_for(seq.longest) - len(seq.blocks)

    def _fits(self, seq: Sequence, *, free: int = 0, growing: int = 0, seats: int = 0) -> bool:
        """Whether there is room; the numbers are what would be given back before.

        Beside its tokens it needs a block for the next one, and the share that is kept free of
        what it and others may grow; where nobody else grows it always can, once it is in.
        """
        taken = len(self.running) + len(self.reserved) - seats
        if taken >= self.limits.max_sequences:
            return False
        now = self.kv.blocks_for(len(seq.tokens))
        margin = self.kv.blocks_for(min(len(seq.tokens) + 1, seq.longest)) - now
        if others := self._growing - growing:
            own = self.kv.blocks_for(seq.longest) - now
            margin += self.growth.margin(others + own - margin)
        return now - len(seq.blocks) + margin <= self.kv.free_blocks + free

    def _push_out(self, seq: Sequence) -> bool:
        """Preempt the less urgent until it fits; False, and no change, if it would not."""
        lesser = sorted(self._lesser(seq), key=_rank)
        free = sum(self.kv.sole(one) for one in lesser)
        growing = sum(self._growth_of(one) for one in lesser)
        if not lesser or not self._fits(seq, free=free, growing=growing, seats=len(lesser)):
            return False
        while not self._fits(seq):
            self.preempt(lesser.pop())
        return True

    def _lesser(self, seq: Sequence) -> Iterator[Sequence]:
        mine = seq.request.priority
        for one in self.running.values():
            if one.request.priority > mine and not one.parks:
                yield one


def _rank(seq: Sequence) -> tuple[int, int]:
    return seq.rank
