"""The asynchronous side of admission: requests await their turn here."""

import asyncio
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from api.gate import (
    AdmissionRequest,
    AdmittedRequest,
    Deadline,
    DeadlineExceeded,
    UncountedRequest,
)
from api.generator import Embedder, PooledEvent
from engine.request import ModelKey, PoolingRequest
from proxy.admission.admission import Admission
from proxy.admission.errors import QueueWaitTooLong
from proxy.admission.limits import ApiCaller, KeyLimits
from proxy.admission.pools import CountNodes, NodeCounts
from proxy.admission.queue import QueueEntry
from proxy.timeline.exchange import HttpExchange, current

LOOK_S = 0.1  # nodes join and leave without a notice to the gate
ANYBODY = ApiCaller()
NO_LIMITS = KeyLimits()
NOBODY = NodeCounts()
BUCKETS_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
TIMEOUT = "timeout"

caller: ContextVar[ApiCaller] = ContextVar("caller", default=ANYBODY)
"""Whose request is being served; set where API keys are checked."""


@dataclass(slots=True)
class Waits:
    """A histogram of waits, of admitted and refused requests."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Record a wait."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(slots=True)
class _AdmittedPass:
    """A request that was admitted, and is counted."""

    gate: "AdmissionGate"
    entry: QueueEntry
    deadline: Deadline | None

    def record_tokens(self, tokens: int, choice: int = 0) -> None:
        """See AdmittedRequest."""
        self.gate.record_tokens(self.entry, tokens, choice)


@dataclass(slots=True)
class AdmissionGate:
    """A Gate; `nodes` counts the nodes of a model by role.

    `timeout_s` is for requests without a timeout of their own. Where neither the key nor the
    proxy has limits, requests are not counted.
    """

    admission: Admission = field(default_factory=Admission)
    nodes: CountNodes = lambda _model: NOBODY
    timeout_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    waits: Waits = field(default_factory=Waits)
    _waiting: dict[QueueEntry, "asyncio.Future[None]"] = field(default_factory=dict)
    _nodes: dict[ModelKey | None, NodeCounts] = field(default_factory=dict)

    @asynccontextmanager
    async def enter(self, visit: AdmissionRequest) -> AsyncGenerator[AdmittedRequest]:
        """See Gate. Raises AdmissionRefused."""
        who, admission = caller.get(), self.admission
        own = admission.limits_of(who)
        exchange = current.get() or HttpExchange(self.clock())
        exchange.tokenized = self.clock()
        deadline = self._deadline(visit, exchange)
        entry = None
        if own != NO_LIMITS or not admission.limits.none:
            ends = None if deadline is None else exchange.received + deadline.timeout_s
            entry = self._entry(visit, who.name, own, ends)
            await self._await_turn(entry, deadline)
            exchange.admitted = self.clock()
        try:
            yield _AdmittedPass(self, entry, deadline) if entry else UncountedRequest(deadline)
        except DeadlineExceeded:
            admission.refused[TIMEOUT] += 1
            raise
        finally:
            if entry:
                self._end(entry)

    def record_tokens(self, entry: QueueEntry, tokens: int, choice: int = 0) -> None:
        """Count tokens of a choice; its first ones make room for another prompt."""
        if self.admission.record_tokens(entry, tokens, choice):
            self.admission.record_first_token(entry, now=self.clock())
            self._admit()

    def rate_limit_headers(self) -> Mapping[str, str]:
        """The caller's `x-ratelimit-*` headers."""
        who, admission = caller.get(), self.admission
        return admission.rates.headers(who, admission.limits_of(who), now=self.clock())

    async def run(self) -> None:
        """While requests wait, check for new nodes, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._nodes.clear()
            if self._waiting:
                self._admit()

    def _deadline(self, visit: AdmissionRequest, exchange: HttpExchange) -> Deadline | None:
        """The end of its timeout, which counts from when the request was received."""
        own = visit.timeout_s is not None
        if (timeout_s := visit.timeout_s if own else self.timeout_s) is None:
            return None
        left_s = timeout_s - (self.clock() - exchange.received)
        return Deadline(_now() + left_s, timeout_s, own)

    def _entry(
        self, visit: AdmissionRequest, name: str, limits: KeyLimits, ends: float | None
    ) -> QueueEntry:
        least = limits.min_priority
        return QueueEntry(
            name,
            limits,
            visit.prompt_tokens,
            visit.prompt_tokens + self.admission.estimate(name, visit.max_tokens),
            visit.choices,
            visit.priority if least is None else max(visit.priority, least),
            ends,
            model=visit.model if self.admission.limits.of_nodes else None,
            pooled=not visit.max_tokens,
        )

    async def _await_turn(self, entry: QueueEntry, deadline: Deadline | None) -> None:
        now = self.clock()
        self._wake(self.admission.arrive(entry, now=now, nodes=self._count))
        try:
            if entry.began is None:
                self.admission.check_wait(entry, now=now, nodes=self._count)
                await self._wait(entry, deadline)
        except BaseException:
            self._give_up(entry)
            raise
        finally:
            self.waits.add(self.clock() - now)

    async def _wait(self, entry: QueueEntry, deadline: Deadline | None) -> None:
        woken = self._waiting[entry] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(deadline.at if deadline else None):
                await woken
        except TimeoutError:
            assert deadline is not None
            self.admission.refused[QueueWaitTooLong.reason] += 1
            wait_s = self.admission.wait_s(entry, self._count(entry.model)) or 0.0
            why = f"the request was still in line after {deadline.allowed}"
            raise QueueWaitTooLong(f"Overloaded: {why}", wait_s) from None
        finally:
            del self._waiting[entry]

    def _give_up(self, entry: QueueEntry) -> None:
        """A request that stopped waiting leaves the queue, or ends if it was just admitted."""
        if entry.began is not None:
            self._end(entry)
        elif self.admission.withdraw(entry, now=self.clock()):
            self._admit()

    def _end(self, entry: QueueEntry) -> None:
        self.admission.finish(entry, now=self.clock())
        self._admit()

    def _admit(self) -> None:
        if len(self.admission.queue):
            self._wake(self.admission.admit_next(now=self.clock(), nodes=self._count))

    def _wake(self, going: Sequence[QueueEntry]) -> None:
        for entry in going:
            woken = self._waiting.get(entry)
            if woken is not None and not woken.done():
                woken.set_result(None)

    def _count(self, model: ModelKey | None) -> NodeCounts:
        """The nodes of a model by role, cached: there may be a thousand nodes."""
        if not self.admission.limits.of_nodes:
            return NOBODY
        if model not in self._nodes:
            self._nodes[model] = self.nodes(model)
        return self._nodes[model]


@dataclass(frozen=True, slots=True)
class GatedEmbedder:
    """An Embedder behind the gate."""

    embedder: Embedder
    gate: AdmissionGate

    async def embed(self, requests: Sequence[PoolingRequest]) -> Sequence[PooledEvent]:
        """See Embedder; raises AdmissionRefused and DeadlineExceeded as well."""
        tokens, urgent = sum(len(one.prompt) for one in requests), requests[0].priority
        count, model = len(requests), requests[0].model
        visit = AdmissionRequest(tokens, 0, choices=count, priority=urgent, model=model)
        async with self.gate.enter(visit) as let_in:
            deadline = let_in.deadline
            try:
                async with asyncio.timeout_at(deadline.at if deadline else None):
                    pooled = await self.embedder.embed(requests)
            except TimeoutError:
                assert deadline is not None
                raise deadline.exceeded() from None
            let_in.record_tokens(0)
            return pooled


def _now() -> float:
    return asyncio.get_running_loop().time()
