"""Sequences and their states: admission, preemption, and the blocks each one holds.

A *seat* is one of the `max_num_seqs` places among running and reserved sequences.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.errors import RequestTooLong
from engine.request import RequestId
from engine.scheduling.kv_manager import KvManager
from engine.scheduling.sequence import Sequence, SequenceState
from engine.scheduling.waiting import WaitingQueue
from engine.scheduling.watermark import Watermark


@dataclass(frozen=True, slots=True)
class Limits:
    """The sizes of the largest batch and of the longest sequence."""

    max_tokens: int
    max_sequences: int
    max_model_len: int | None = None


@dataclass(slots=True)
class SequenceManager:
    """Every known sequence is in exactly one of `waiting`, `fetching`, `running`, `reserved`
    and `parked`.

    A running or reserved sequence has a seat and blocks for all its tokens; a parked one has
    only the blocks. Answers grow, so some blocks are kept free for them (`watermark`). If those
    do not suffice, the running sequence last in rank is preempted: the least urgent, and among
    equals the newest. A sequence that will park is never preempted, because a decode node may
    be reading its blocks.
    """

    kv: KvManager
    limits: Limits
    watermark: Watermark = field(default_factory=Watermark)
    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    fetching: dict[RequestId, Sequence] = field(default_factory=dict)
    running: dict[RequestId, Sequence] = field(default_factory=dict)
    reserved: dict[RequestId, Sequence] = field(default_factory=dict)
    parked: dict[RequestId, Sequence] = field(default_factory=dict)
    known: dict[RequestId, Sequence] = field(default_factory=dict)
    preemptions: int = 0
    loans: int = 0  # how many loans of blocks are open, see lending.py
    _arrivals: int = 0
    _growing: int = 0  # blocks that sequences with a seat may still grow into
    _frees: int = 0  # how often there was more to be had: a seat, blocks, or one to preempt

    def set_arrival(self, seq: Sequence) -> None:
        """Number it in the order of arrival; a reservation keeps the number of its first try.

        Raises RequestTooLong if it can never fit.
        """
        if not seq.arrival:
            seq.longest = self._longest(seq)
            self._arrivals += 1
            seq.arrival = self._arrivals

    def check_is_new(self, request_id: RequestId) -> None:
        """Raise ValueError for an id that is in use."""
        if request_id in self.known:
            raise ValueError(f"request {request_id} is here already")

    def register(self, seq: Sequence) -> None:
        """Register it by its request id, which `check_is_new` has passed."""
        self.known[seq.request_id] = seq

    def admit(self, seq: Sequence, *, state_comes: bool = False) -> bool:
        """Take blocks for all its tokens; False, and no change, if no seat or blocks are free.

        Less urgent sequences are preempted if that frees enough. A sequence that was refused is
        refused again without a check until something is freed or more of it is cached, because
        a check costs as much as hashing the prompt. If `state_comes`, another node computes it.
        """
        if self._stays_refused(seq):
            return False
        self.kv.match(seq, state_comes=state_comes)
        if self._is_too_large_with_source(seq):
            self.kv.free(seq)
        if not self._fits(seq) and not self._preempt_for(seq):
            seq.refused_at = self._frees
            seq.uncached = self.kv.next_uncached(seq)
            self.kv.free(seq)
            return False
        self.kv.grow(seq, len(seq.tokens))
        self.kv.restore(seq)
        seq.fetched = False
        self._growing += self._growth_of(seq)
        return True

    def start_fetch(self, seq: Sequence) -> bool:
        """Start to read its KV from disk, if there is any and the sequence would fit now.

        True: it has moved from the waiting queue to `fetching`, where it holds neither seat nor
        blocks. This is tried once: KV that host memory evicts again before the sequence is
        admitted is computed instead.
        """
        if not self.kv.has_disk or seq.fetched or self._stays_refused(seq):
            return False
        self.kv.match(seq)
        begun = self._fits(seq) and self.kv.fetch(seq)
        self.kv.free(seq)
        if begun:
            self.waiting.remove(seq)
            seq.state = SequenceState.FETCHING
            self.fetching[seq.request_id] = seq
        return begun

    def requeue_fetched(self) -> None:
        """Move sequences back to the queue whose KV has arrived from disk, or took too long."""
        for request_id in self.kv.take_fetched():
            seq = self.fetching.pop(request_id, None)
            if seq is not None:
                seq.state, seq.fetched = SequenceState.WAITING, True
                self.waiting.push(seq)

    def run(self, seq: Sequence) -> None:
        """Make an admitted or reserved sequence running."""
        if self.reserved.pop(seq.request_id, None):
            self._frees += 1  # a more urgent sequence may preempt it from now on
        seq.state = SequenceState.RUNNING
        self.running[seq.request_id] = seq

    def reserve(self, seq: Sequence) -> None:
        """Make an admitted sequence reserved, until its KV has been transferred."""
        seq.state = SequenceState.RESERVED
        self.reserved[seq.request_id] = seq

    def park(self, seq: Sequence) -> None:
        """Free its seat, and keep its blocks for the decode node to read."""
        del self.running[seq.request_id]
        seq.state = SequenceState.PARKED
        self.parked[seq.request_id] = seq
        self._frees += 1

    def grow_or_preempt(self, seq: Sequence) -> bool:
        """Get blocks for all its tokens, preempting others; False: it was preempted itself."""
        while seq.state is SequenceState.RUNNING and not self.try_grow(seq, len(seq.tokens)):
            last = max((one for one in self.running.values() if not one.parks), key=_rank)
            self.watermark.record_preemption()
            self.preempt(last)
        return seq.state is SequenceState.RUNNING

    def try_grow(self, seq: Sequence, upto: int) -> bool:
        """Get blocks for `upto` tokens from the free ones; False, and no change, if too few."""
        before = len(seq.blocks)
        if not self.kv.grow(seq, upto):
            return False
        self._growing -= len(seq.blocks) - before
        return True

    def preempt(self, seq: Sequence) -> None:
        """Free its seat and blocks, and queue it to be computed again."""
        self.preemptions += 1
        del self.running[seq.request_id]
        self._free_seat(seq)
        seq.state = SequenceState.WAITING
        seq.drafting = None  # it may have been about the blocks
        self.waiting.push(seq)

    def remove(self, seq: Sequence) -> None:
        """Forget a sequence in any state, and free what it holds."""
        del self.known[seq.request_id]
        self.waiting.release_followers(seq)
        self.kv.release_fetched(seq)
        if seq.state is SequenceState.WAITING:
            self.waiting.remove(seq)
        elif seq.state is SequenceState.FETCHING:
            del self.fetching[seq.request_id]
        elif seq.state is SequenceState.PARKED:
            del self.parked[seq.request_id]
            self._frees += 1
            self.kv.free(seq)
        else:
            seats = self.running if seq.state is SequenceState.RUNNING else self.reserved
            del seats[seq.request_id]
            if seq.state is SequenceState.RUNNING and seq.produced and not seq.parks:
                self.watermark.record_finish(seq.produced / seq.request.sampling.max_tokens)
            self._free_seat(seq)

    def note_freed_blocks(self) -> None:
        """Note that a loan ended, so that refused sequences are checked again."""
        self._frees += 1

    @property
    def kept_free(self) -> int:
        """How many blocks are kept free for growing answers."""
        return self.watermark.margin(self._growing)

    def check_idle(self) -> None:
        """Raise if blocks are held although there are no sequences and no loans; cheap."""
        if not self.known and not self.loans:
            self.kv.check_idle()
            assert self._growing == 0, f"{self._growing} blocks are wanted by nobody"

    def _longest(self, seq: Sequence) -> int:
        """The most tokens that may need KV; an answer's last token never does."""
        answer = 0 if seq.parks or seq.pooling else seq.request.sampling.max_tokens
        longest = max(len(seq.request.prompt) + answer, len(seq.tokens))
        most, kv = self.limits.max_model_len, self.kv
        room = (kv.num_blocks - kv.blocks_per_state) * kv.block_size
        said, param = (
            f"{seq.request_id}: {longest} tokens",
            "input" if seq.pooling else "max_tokens",
        )
        if most is not None and longest > most:
            raise RequestTooLong(f"{said}, the model has {most}", param)
        if longest > room:
            raise RequestTooLong(f"{said} never fit", param)
        return max(longest - 1, len(seq.tokens))

    def _free_seat(self, seq: Sequence) -> None:
        """Give back the seat and the blocks of a running or reserved sequence."""
        self._growing -= self._growth_of(seq)
        self._frees += 1
        self.kv.free(seq)

    def _is_too_large_with_source(self, seq: Sequence) -> bool:
        """Whether it never fits beside the snapshot that it would begin from."""
        if seq.trail is None:
            return False
        blocks = self.kv.blocks_for(min(len(seq.tokens) + 1, seq.longest))
        others = self.kv.blocks_per_state + len(seq.trail.source)
        return blocks + others > self.kv.num_blocks

    def _growth_of(self, seq: Sequence) -> int:
        return self.kv.blocks_for(seq.longest) - len(seq.blocks)

    def _stays_refused(self, seq: Sequence) -> bool:
        """Whether it was refused, and nothing has changed since that could let it in."""
        return seq.refused_at == self._frees and not self.kv.pool.has(seq.uncached)

    def _fits(self, seq: Sequence, *, free: int = 0, growing: int = 0, seats: int = 0) -> bool:
        """Whether it could be admitted if `free` blocks and `seats` seats were freed first.

        `growing` is by how many blocks that would reduce the possible growth of other answers.
        """
        seats_taken = len(self.running) + len(self.reserved) - seats
        has_seat = seats_taken < self.limits.max_sequences
        return has_seat and self._blocks_needed(seq, growing) <= self.kv.free_blocks + free

    def _blocks_needed(self, seq: Sequence, growing: int) -> int:
        """Free blocks that admission needs: for its tokens, for the next one, and a margin.

        The margin is the watermark's share of all blocks that it and the others may grow into.
        If no other sequence grows there is no margin: it can always take what is left.
        """
        prompt_blocks = self.kv.blocks_for(len(seq.tokens))
        next_token = self.kv.blocks_for(min(len(seq.tokens) + 1, seq.longest)) - prompt_blocks
        margin = 0
        if others_growth := self._growing - growing:
            own_growth = self.kv.blocks_for(seq.longest) - prompt_blocks
            margin = self.watermark.margin(others_growth + own_growth - next_token)
        for_state = self.kv.blocks_per_state - len(seq.state_blocks)
        return prompt_blocks - len(seq.blocks) + for_state + next_token + margin

    def _preempt_for(self, seq: Sequence) -> bool:
        """Preempt less urgent sequences until it fits; False, and no change, if it cannot."""
        lesser = sorted(self._less_urgent(seq), key=_rank)
        free = self.kv.blocks_used_only_by(lesser)
        growing = sum(self._growth_of(one) for one in lesser)
        if not self._fits(seq, free=free, growing=growing, seats=len(lesser)):
            return False
        while not self._fits(seq):
            self.preempt(lesser.pop())
        return True

    def _less_urgent(self, seq: Sequence) -> Iterator[Sequence]:
        mine = seq.request.priority
        for one in self.running.values():
            if one.request.priority > mine and not one.parks:
                yield one


def _rank(seq: Sequence) -> tuple[int, int]:
    return seq.rank
