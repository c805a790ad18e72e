"""Fetches into this node's prefix cache what another node has cached of a waiting prompt.

start ── asked ── a Loan ── borrow, pull ── Arrived, confirmed ── keep ──▶ Fetched
           │         │                          └── an error ── give back ──▶ Fetched nothing
           └─────────┴── too late, or nothing there ──────────────────────▶ Fetched nothing

The prompt can always be computed instead, so no step may take longer than half the time that it
would save, and a node that did not answer is not asked for a while. Blocks are reserved only
once it is known how many will come. If a prompt stops waiting or is aborted, its pull still
owns its blocks until `Arrived`; blocks that arrive anyway are kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.api import Engine
from engine.request import Request, RequestId
from kv_transfer.api import Arrived, FetchedPrefix, KvSink, Loan, TransferStats
from kv_transfer.errors import TransferError
from kv_transfer.ticket import CacheHint, KvTicket

LEAST_TOKENS = 64  # asking and pulling costs about as much as computing this many
LEAST_WAIT_S, MOST_WAIT_S = 0.02, 1.0
SHARE = 0.5  # of the time that computing would take
LEFT_ALONE_S = 5.0
MOST_LEFT_ALONE = 1024
WEIGHT = 0.1  # of the latest batch in the moving average


@dataclass(slots=True, eq=False)
class _CacheFetch:
    name: str  # of the request and the loan; never used twice, like a request's id
    waiting: dict[RequestId, float]  # each with the time since when
    cache: CacheHint
    keys: Sequence[bytes]
    have: int  # the number of these blocks that are here
    until: float  # when the prompts stop waiting, unless the blocks have come
    upto: int = 0  # the number of blocks including those that are pulled
    ticket: KvTicket | None = None


@dataclass(slots=True)
class CacheFetcher:
    """Owns every prompt from `start` until `collect` returns it, or it is aborted."""

    engine: Engine
    sink: KvSink
    clock: Callable[[], float]
    least_tokens: int = LEAST_TOKENS
    _pace_s: float | None = None  # for one token
    _waiting: dict[RequestId, _CacheFetch] = field(default_factory=dict)
    _asked: dict[str, _CacheFetch] = field(default_factory=dict)
    _pulling: dict[str, _CacheFetch] = field(default_factory=dict)
    _left_alone: dict[str, float] = field(default_factory=dict)
    _done: list[FetchedPrefix] = field(default_factory=list)

    def record_pace(self, num_tokens: int, seconds: float) -> None:
        """Record how long a batch took, to estimate how long computing a prompt would take."""
        if num_tokens >= self.engine.info.block_size:
            pace = seconds / num_tokens
            before = pace if self._pace_s is None else self._pace_s
            self._pace_s = before + WEIGHT * (pace - before)

    def start(self, request: Request, cache: CacheHint) -> bool:
        """Ask for the missing blocks; False: a fetch is not worthwhile, compute the prompt."""
        now, info = self.clock(), self.engine.info
        if cache.fingerprint != info.fingerprint or self._is_left_alone(cache, now):
            return False
        keys = self.engine.keys(request)
        have = self.engine.known(keys)
        missing = len(keys) - have
        if missing * info.block_size < max(1, self.least_tokens):
            return False
        fetch = self._same(keys)
        if fetch is None:
            name, until = f"fetch-{request.request_id}", now + self._patience(missing)
            fetch = self._asked[name] = _CacheFetch(name, {}, cache, keys, have, until)
            self.sink.request_loan(name, cache, keys[have:])
        fetch.waiting[request.request_id] = now
        self._waiting[request.request_id] = fetch
        return True

    def abort(self, request_id: RequestId) -> None:
        """Stop waiting for this prompt; unknown ids are ignored."""
        if fetch := self._waiting.pop(request_id, None):
            del fetch.waiting[request_id]
            if not fetch.waiting:
                self._stop(fetch)
        self._done = [done for done in self._done if done.request_id != request_id]

    def handle_arrival(self, arrived: Arrived) -> None:
        """Book a pull of this fetcher that has ended."""
        fetch, sealed = self._pulling.pop(arrived.ticket_id), arrived.sealed
        size, count = self.engine.info.block_size, fetch.upto - fetch.have
        wanted = count * size, fetch.keys[fetch.upto - 1]
        if sealed is None or (sealed.num_tokens, sealed.tokens_digest) != wanted:
            self.engine.give_back(fetch.name)
            if fetch.waiting:  # otherwise it was given up here
                self._leave_alone(fetch.cache)
            self._end(fetch, 0, arrived.stats)
        else:
            self.engine.keep(fetch.name)
            self._end(fetch, count * size, arrived.stats)

    def collect(self) -> Sequence[FetchedPrefix]:
        """Pull what is lent; returns each prompt that no longer waits, once."""
        for loan in self.sink.loans():
            self._take(loan)
        now = self.clock()
        for fetch in {one.name: one for one in self._waiting.values()}.values():
            if fetch.until <= now:
                self._leave_alone(fetch.cache)
                self._stop(fetch)
                self._end(fetch, 0, TransferStats())
        done, self._done = self._done, []
        return done

    def _take(self, loan: Loan) -> None:
        fetch = self._asked.pop(loan.name, None)
        if fetch is None or loan.ticket is None or not self._pull(fetch, loan, loan.ticket):
            if loan.ticket is not None:
                self.sink.abandon(loan.ticket)
            if fetch is not None:
                self._end(fetch, 0, TransferStats())

    def _pull(self, fetch: _CacheFetch, loan: Loan, ticket: KvTicket) -> bool:
        """Start the pull; False, with nothing held, if there is no room or a bad answer."""
        fetch.upto = fetch.have + loan.num_blocks
        if not fetch.have < fetch.upto <= len(fetch.keys):
            return False
        blocks = self.engine.borrow(fetch.name, fetch.keys[: fetch.upto], fetch.have)
        if blocks is None:
            return False
        try:
            self.sink.pull(ticket, into=blocks)
        except TransferError:
            self.engine.give_back(fetch.name)
            return False
        fetch.ticket, fetch.until = ticket, self.clock() + self._patience(loan.num_blocks)
        self._pulling[ticket.ticket_id] = fetch
        return True

    def _stop(self, fetch: _CacheFetch) -> None:
        """Abandon the ticket; a pull goes on until it has ended, a late answer is abandoned."""
        self._asked.pop(fetch.name, None)
        if fetch.ticket is not None:
            self.sink.abandon(fetch.ticket)

    def _end(self, fetch: _CacheFetch, num_tokens: int, moved: TransferStats) -> None:
        """Report to all waiting prompts; the first gets the tokens, others find them cached."""
        start, now = fetch.have * self.engine.info.block_size, self.clock()
        for request_id, since in fetch.waiting.items():
            del self._waiting[request_id]
            told = FetchedPrefix(request_id, start, num_tokens, now - since, moved.num_bytes)
            self._done.append(told)
            num_tokens, moved = 0, TransferStats()
        fetch.waiting.clear()

    def _same(self, keys: Sequence[bytes]) -> _CacheFetch | None:
        """A fetch of the same blocks that another prompt already waits for."""
        waiting = self._waiting.values()
        return next((one for one in waiting if one.keys[-1] == keys[-1]), None)

    def _patience(self, blocks: int) -> float:
        if self._pace_s is None:
            return MOST_WAIT_S
        computing_s = self._pace_s * blocks * self.engine.info.block_size
        return min(MOST_WAIT_S, max(LEAST_WAIT_S, SHARE * computing_s))

    def _is_left_alone(self, cache: CacheHint, now: float) -> bool:
        return self._left_alone.get(cache.engine_id, now) > now

    def _leave_alone(self, cache: CacheHint) -> None:
        self._left_alone.pop(cache.engine_id, None)
        self._left_alone[cache.engine_id] = self.clock() + LEFT_ALONE_S
        while len(self._left_alone) > MOST_LEFT_ALONE:
            del self._left_alone[next(iter(self._left_alone))]
