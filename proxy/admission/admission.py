"""Admission: which requests may start, which wait in the queue, which are refused.

A request counts as tokens: its prompt's and an estimate of its answer's. That is the most it
may have, or 1.5 times the recent mean of its key's answers if that is less. An answer that
exceeds its estimate is counted as it grows. Pure: times are arguments.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from discovery.registration import Role
from proxy.admission.errors import (
    AdmissionRefused,
    KeyQueueFull,
    ModelQueueFull,
    QueueFull,
    QueueWaitTooLong,
    RateLimited,
)
from proxy.admission.limits import AdmissionLimits, ApiCaller, KeyLimits
from proxy.admission.pools import (
    CountNodes,
    LoadInUse,
    NodeCounts,
    NodePools,
    PoolKey,
    waiting_for,
)
from proxy.admission.queue import QueueEntry, RequestQueue
from proxy.admission.rates import RateBuckets

HEADROOM = 1.5
NEWEST = 0.1  # what the newest answer weighs in an average
MOST_GUESSED = 4096
CHOICES, TOKENS = attrgetter("choices"), attrgetter("tokens")


@dataclass(slots=True)
class Admission:
    """Knows the requests that run and those in the queue; see `QueueEntry` for times."""

    limits: AdmissionLimits = field(default_factory=AdmissionLimits)
    key_limits: KeyLimits = field(default_factory=KeyLimits)  # of keys without their own
    queue: RequestQueue = field(default_factory=RequestQueue)
    rates: RateBuckets = field(default_factory=RateBuckets)
    in_use: LoadInUse = field(default_factory=LoadInUse)
    pools: NodePools = field(init=False)
    refused: Counter[str] = field(default_factory=Counter)
    _keys: dict[str, LoadInUse] = field(default_factory=dict)
    _answers: dict[str, float] = field(default_factory=dict)
    _pace: float | None = None  # recent tokens per second and choice
    _prompt_s: float | None = None  # recent seconds until a choice's first token

    def __post_init__(self) -> None:
        """Start with no running requests."""
        self.pools = NodePools(self.limits)

    def limits_of(self, who: ApiCaller) -> KeyLimits:
        """The key's own limits, or else the proxy's for all keys."""
        return who.limits or self.key_limits

    def estimate(self, name: str, most: int) -> int:
        """Tokens of all answers to one request of this key, which may have `most`."""
        usual = self._answers.get(name)
        return most if usual is None else min(most, int(usual * HEADROOM) + 1)

    def arrive(self, entry: QueueEntry, *, now: float, nodes: CountNodes) -> list[QueueEntry]:
        """Queue a new request; returns those that may start now, maybe with it among them.

        Raises RateLimited, and then it is not queued.
        """
        entry.arrived = now
        try:
            self.rates.begin(entry, now=now)
        except RateLimited as refusal:
            self.refused[refusal.reason] += 1
            raise
        self.queue.push(entry)
        return self.admit_next(now=now, nodes=nodes)

    def check_wait(self, entry: QueueEntry, *, now: float, nodes: CountNodes) -> None:
        """Check that a request that has to wait may; raises AdmissionRefused, and drops it."""
        hands = nodes(entry.model)
        wait_s = self.wait_s(entry, hands) or 0.0
        if refusal := self._refusal(entry, now, wait_s, hands):
            self.withdraw(entry, now=now)
            self.refused[refusal.reason] += 1
            raise refusal

    def admit_next(self, *, now: float, nodes: CountNodes) -> list[QueueEntry]:
        """Admit those that may start now, in order; from then on they count as running."""
        return list(self._admit(now, nodes))

    def withdraw(self, entry: QueueEntry, *, now: float) -> bool:
        """Remove a request that gave up waiting; False if it was not in the queue."""
        waited = self.queue.remove(entry)
        if waited:
            self.rates.undo(entry, now=now)
        return waited

    def record_tokens(self, entry: QueueEntry, tokens: int, choice: int = 0) -> bool:
        """Count tokens of one of its choices; returns whether that made room for others."""
        entry.answered = True
        entry.produced += tokens
        beyond = entry.prompt_tokens + entry.produced - entry.tokens
        if beyond > 0:
            entry.tokens += beyond
            self._book(entry, 0, beyond)
            self.pools.grow(entry, beyond)
            self.queue.charge(entry, beyond)
        return self.pools.prompt_finished(entry, choice)

    def record_first_token(self, entry: QueueEntry, *, now: float) -> None:
        """Learn the time to first token: the prompt of one of its choices was run."""
        assert entry.began is not None
        self._prompt_s = _average(self._prompt_s, now - entry.began)

    def finish(self, entry: QueueEntry, *, now: float) -> None:
        """Record that a running request has ended, in whatever way."""
        assert entry.began is not None
        self._book(entry, -entry.choices, -entry.tokens)
        self.pools.end(entry)
        self.rates.end(entry, now=now)
        real = entry.prompt_tokens + entry.produced
        self.queue.charge(entry, real - entry.tokens)
        if entry.answered and now > entry.began:
            pace = real / entry.choices / (now - entry.began)
            self._pace = _average(self._pace, pace)
            if not entry.pooled:
                self._learn(entry.name, entry.produced)

    def wait_s(self, entry: QueueEntry, hands: NodeCounts) -> float | None:
        """Estimated seconds until a request may start; None: nothing is known yet.

        Assumes that running requests go on at the recent pace, and that the requests ahead get
        room first. A key at its limit waits for its own requests, and a model whose nodes are
        full for theirs.
        """
        waits = [self._pool_s(entry, one) for one in self.pools.full(entry, hands)]
        own = self._keys.get(entry.name)
        if own and not self._key_has_room(entry):
            before = sum(one.tokens for one in self.queue.of(entry.name) if one is not entry)
            waits.append(self._paced_s(before + entry.tokens, own.choices))
        if not waits or not self.in_use.fits(entry.choices, entry.tokens, self.limits.all):
            tokens = self.queue.ahead_of(entry) + entry.tokens
            waits.append(self._paced_s(tokens, self.in_use.choices))
        return max((one for one in waits if one is not None), default=None)

    def _pool_s(self, entry: QueueEntry, pool: PoolKey) -> float | None:
        """Seconds until these nodes have room; for prompts by recent times to first token."""
        at_work = self.pools.choices_at(pool)
        if pool[0] is Role.PREFILL:
            if self._prompt_s is None:
                return None
            prompts = self.queue.ahead_of(entry, waiting_for(pool, CHOICES)) + entry.choices
            return self._prompt_s * prompts / at_work
        tokens = self.queue.ahead_of(entry, waiting_for(pool, TOKENS)) + entry.tokens
        return self._paced_s(tokens, at_work)

    def _paced_s(self, tokens: float, choices: int) -> float | None:
        """Seconds until this many choices have made room for this many tokens."""
        return tokens / choices / self._pace if self._pace and choices else None

    def _admit(self, now: float, nodes: CountNodes) -> Iterator[QueueEntry]:
        """Admit in the queue's order. One too large for the free room blocks those behind,
        or it would never fit.

        One that waits for a model's nodes blocks no other model, one that waits for its key's
        limit no other key.
        """
        while entry := self.queue.next(self._admissible(nodes)):
            if not self.in_use.fits(entry.choices, entry.tokens, self.limits.all):
                return
            self.queue.remove(entry)
            entry.began = now
            self._book(entry, entry.choices, entry.tokens)
            self.pools.begin(entry, nodes(entry.model))
            self.queue.begin(entry)
            yield entry

    def _admissible(self, nodes: CountNodes) -> Callable[[QueueEntry], bool]:
        """Whether an entry may start, as a predicate; to be called in the queue's order."""
        awaited = set[PoolKey]()

        def may(entry: QueueEntry) -> bool:
            if not self._key_has_room(entry):
                return False
            return self.pools.have_room(entry, nodes(entry.model), awaited)

        return may

    def _learn(self, name: str, produced: int) -> None:
        """Update the mean answer of this key."""
        self._answers[name] = _average(self._answers.pop(name, None), produced)
        if len(self._answers) > MOST_GUESSED:
            del self._answers[next(iter(self._answers))]

    def _refusal(
        self, entry: QueueEntry, now: float, wait_s: float, hands: NodeCounts
    ) -> AdmissionRefused | None:
        own, most = len(self.queue.of(entry.name)) - 1, entry.limits.max_queued
        if most is not None and own >= most:
            who = f"key {entry.name!r} has {own} requests in line"
            return KeyQueueFull(f"Too many requests: {who} already", wait_s)
        alike = self.queue.waiting_for(entry.model) - 1
        most = self.limits.queued_for(hands.decode or hands.prefill)
        if most is not None and alike >= most:
            many = f"{alike} requests are in line for the nodes of this model"
            return ModelQueueFull(f"Overloaded: {many} already", wait_s)
        if len(self.queue) > self.limits.queued:
            long = f"{len(self.queue) - 1} requests are in line"
            return QueueFull(f"Overloaded: {long} already", wait_s)
        if entry.deadline is not None and now + wait_s > entry.deadline:
            late = f"a wait of {wait_s:.1f} s is longer than the time that the request has left"
            return QueueWaitTooLong(f"Overloaded: {late}", now + wait_s - entry.deadline)
        return None

    def _key_has_room(self, entry: QueueEntry) -> bool:
        own = self._keys.get(entry.name)
        return own is None or own.fits(entry.choices, entry.tokens, entry.limits.at_work)

    def _book(self, entry: QueueEntry, choices: int, tokens: int) -> None:
        own = self._keys.setdefault(entry.name, LoadInUse())
        for one in (own, self.in_use):
            one.add(choices, tokens)
        if not own.choices:
            del self._keys[entry.name]


def _average(before: float | None, newest: float) -> float:
    return newest if before is None else before + NEWEST * (newest - before)
