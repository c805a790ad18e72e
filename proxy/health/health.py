"""What calls have shown of nodes and pairs: one breaker for each that ever failed. Pure.

Fed by what is infrastructure's fault only: a client that leaves, or sends what a node refuses,
says nothing of the node, nor does one that is full or stops. A node's next start begins with
one call at a time, whatever the one before it did.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from api.generator import EndEvent, Event, StageEvent, TokenEvent
from discovery.registration import Role, State
from discovery.registry import Node, Registry, node_address
from proxy.errors import Cause, NodeFailed
from proxy.health.breaker import Breaker, BreakerRules, BreakerState
from proxy.health.filter_cache import FilterCache
from proxy.routing.plan import Plan

MOST_KNOWN = 4096
NOBODY: frozenset[Node] = frozenset()
TIDY_S = 5.0
TROUBLES = (
    *(Cause.UNREACHABLE, Cause.SILENT, Cause.BROKEN, Cause.SIGNATURE),
    *(Cause.NODE_ERROR, Cause.BUSY),
)
LOST, TRANSFERRED = "lost", "transfer"
SUCCESSES = (TokenEvent, EndEvent)
Key = TypeVar("Key")
Value = TypeVar("Value")
Pair = tuple[str, str]
"""The ids of a prefill and a decode node."""
NO_PAIR: frozenset[Pair] = frozenset()


@dataclass(slots=True)
class Health:
    """Asked before each plan, so it costs next to nothing while nothing has failed.

    `failures` is how often a call to the node at an address has failed, as far as we remember,
    `opened` how often a breaker opened, by what it is of.
    """

    registry: Registry
    rules: BreakerRules = field(default_factory=BreakerRules)
    failures: Counter[str] = field(default_factory=Counter)
    opened: Counter[str] = field(default_factory=Counter)
    retries: Counter[Cause] = field(default_factory=Counter)
    _nodes: dict[str, tuple[str, Breaker]] = field(default_factory=dict)
    _pairs: dict[Pair, Breaker] = field(default_factory=dict)
    _tidied_at: float = 0.0
    _sieve: FilterCache[Node] = field(default_factory=FilterCache)

    @property
    def has_failures(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._nodes or self._pairs)

    def healthy(self, nodes: Sequence[Node], *, now: float) -> Sequence[Node]:
        """Those to which a call may go."""
        return self._sieve.without(nodes, self.blocked_nodes(now=now))

    def without(self, nodes: Sequence[Node], shut: frozenset[Node]) -> Sequence[Node]:
        """The same where it is known which are shut; cheap for who asks again and again."""
        return self._sieve.without(nodes, shut)

    def blocked_nodes(self, *, now: float) -> frozenset[Node]:
        """The nodes to which none may; looks at those only that ever failed."""
        if not self._nodes:
            return NOBODY
        known = (self.registry.at(address) for address in self._nodes)
        return frozenset(node for node in known if node and not self._admits(node, now))

    def pair_usable(self, prefill: Node, decode: Node, *, now: float) -> bool:
        """Whether the prefill node is well, and so is what lies between the two."""
        if self._nodes and not self._admits(prefill, now):
            return False
        return self.link_usable(prefill, decode, now=now)

    def link_usable(self, prefill: Node, decode: Node, *, now: float) -> bool:
        """Whether what lies between the two is well."""
        if not self._pairs:
            return True
        between = self._pairs.get((prefill.node_id, decode.node_id))
        return between is None or between.admits(now=now, heard_at=now)

    def blocked_pairs(self, *, now: float) -> frozenset[Pair]:
        """The pairs between which nothing may be moved."""
        if not self._pairs:
            return NO_PAIR
        each = self._pairs.items()
        return frozenset(pair for pair, one in each if not one.admits(now=now, heard_at=now))

    def state(self, node: Node, *, now: float) -> BreakerState:
        """Of a node's breaker."""
        breaker = self._breaker_of(node)
        if breaker is None:
            return BreakerState.CLOSED
        return breaker.state(now=now, heard_at=node.heard_at)

    def breaker_reason(self, node: Node, *, now: float) -> str | None:
        """Why its breaker is not closed."""
        breaker = self._breaker_of(node)
        shut = self.state(node, now=now) is not BreakerState.CLOSED
        return breaker.last_failure if breaker and shut else None

    def unhealthy_pairs(self, *, now: float) -> Iterator[tuple[Pair, BreakerState]]:
        """The pairs that are not all well."""
        for pair, breaker in self._pairs.items():
            state = breaker.state(now=now, heard_at=now)
            if state is not BreakerState.CLOSED:
                yield pair, state

    def begin_attempt(self, plan: Plan, *, now: float) -> None:
        """An attempt begins there: of those half open, it is the one call."""
        if self.has_failures and now - self._tidied_at >= TIDY_S:
            self._tidied_at = now
            self.forget(now=now)
        for breaker in self._breakers(plan):
            breaker.begin(now=now)

    def end_attempt(self, plan: Plan, *, begun: float) -> None:
        """The attempt that began then is over; what it did not show is still to be shown."""
        for breaker in self._breakers(plan):
            breaker.end(begun=begun)

    def record_event(
        self, node: Node, event: Event, plan: Plan, *, begun: float, now: float
    ) -> None:
        """One event of an attempt that began at `begun`; a token shows that its node works.

        So does a prefill leg's end: of vLLM's that is all there is.
        """
        if isinstance(event, SUCCESSES):
            self.record_success(node, begun=begun, now=now)
        elif isinstance(event, StageEvent) and plan.prefill is not None:
            pair = plan.prefill.node_id, plan.decode.node_id
            if event.stage == LOST:
                self._pair_failed(pair, begun, now)
            elif event.stage == TRANSFERRED and (between := self._pairs.get(pair)):
                between.succeeded(begun=begun, now=now)

    def record_success(self, node: Node, *, begun: float, now: float) -> None:
        """A call that began at `begun` brought what was asked for."""
        if self._nodes and (breaker := self._breaker_of(node)):
            breaker.succeeded(begun=begun, now=now)

    def record_failure(self, failure: NodeFailed, *, begun: float, now: float) -> str | None:
        """A call of an attempt that began at `begun` failed. Answers with what an operator has
        to be told, if that keeps a node from work and is not over by itself.
        """
        if failure.pair is not None:
            self._pair_failed(failure.pair, begun, now)
            return None
        node = self.registry.find(failure.node_id)
        if node is not None and failure.cause in TROUBLES and not _has_left(node, failure):
            address = node_address(node)
            _add(self.failures, address, self.failures.get(address, 0) + 1)
            known = self._breaker_of(node)
            breaker = Breaker(self.rules) if known is None else known
            _add(self._nodes, address, (node.node_id, breaker))
            sure = not failure.cause.node_alive
            opens = breaker.failed(begun=begun, now=now, sure=sure)
            self.opened["node"] += opens
            breaker.last_failure = str(failure).removeprefix(f"{node.node_id}: ")
            if opens and failure.cause is Cause.SIGNATURE:
                return f"the node at {address} gets no work for now: {breaker.last_failure}"
        return None

    def forget(self, *, now: float) -> None:
        """Of whom nothing is to be held against any more, and who is not there any more."""
        for address, (_, breaker) in list(self._nodes.items()):
            gone = self.registry.at(address) is None and breaker.is_stale(now=now)
            if gone or breaker.is_reset(now=now):
                del self._nodes[address]
        for pair, breaker in list(self._pairs.items()):
            if not self._are_pair(pair) or breaker.is_reset(now=now):
                del self._pairs[pair]

    def _are_pair(self, pair: Pair) -> bool:
        """Whether both are there, in the roles that they had."""
        prefill, decode = map(self.registry.find, pair)
        if prefill is None or decode is None:
            return False
        return prefill.role is Role.PREFILL and decode.role is Role.DECODE

    def _pair_failed(self, pair: Pair, begun: float, now: float) -> None:
        breaker = self._pairs.get(pair) or Breaker(self.rules)
        _add(self._pairs, pair, breaker)
        self.opened["pair"] += breaker.failed(begun=begun, now=now, sure=True)

    def _breakers(self, plan: Plan) -> Iterator[Breaker]:
        if self._nodes:
            nodes = (plan.prefill, plan.decode)
            yield from (one for node in nodes if node and (one := self._breaker_of(node)))
        if self._pairs and plan.prefill:
            between = self._pairs.get((plan.prefill.node_id, plan.decode.node_id))
            if between is not None:
                yield between

    def _admits(self, node: Node, now: float) -> bool:
        breaker = self._breaker_of(node)
        return breaker is None or breaker.admits(now=now, heard_at=node.heard_at)

    def _breaker_of(self, node: Node) -> Breaker | None:
        """The breaker of a node; one that was started anew is let try at once."""
        address = node_address(node)
        known = self._nodes.get(address)
        if known is None:
            return None
        name, breaker = known
        if name != node.node_id:
            breaker.restart()
            self._nodes[address] = node.node_id, breaker
        return breaker


def _has_left(node: Node, failure: NodeFailed) -> bool:
    """Whether it said that it stops, and did."""
    stops = node.registration.state is State.DRAINING
    return stops and failure.cause is Cause.UNREACHABLE


def _add(entries: dict[Key, Value], key: Key, value: Value) -> None:
    """The latest last: who has not been met for longest is forgotten."""
    entries.pop(key, None)
    entries[key] = value
    while len(entries) > MOST_KNOWN:
        del entries[next(iter(entries))]
