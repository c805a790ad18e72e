"""Circuit breakers of nodes, and of pairs of a prefill and a decode node. Pure.

Only failures of infrastructure count: not clients that leave, requests that a node rejects, nor
nodes that are full or shut down. When a node restarts, an open breaker becomes half-open.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from api.generator import EndEvent, Event, StageEvent, TokenEvent
from discovery.node import Node
from discovery.registration import Role, State
from discovery.registry import Registry
from proxy.errors import Cause, NodeFailed, ProxyExhausted
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
    """Has a breaker for each node and pair that failed; costs next to nothing while none has.

    `failures`: failed calls by node address. `opened`: how often breakers of a "node" and of a
    "pair" opened. `attempts`: of choices and of pooling calls; `retries`: those after a failed
    one, by its cause.
    """

    registry: Registry
    rules: BreakerRules = field(default_factory=BreakerRules)
    failures: Counter[str] = field(default_factory=Counter)
    opened: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    retries: Counter[Cause] = field(default_factory=Counter)
    _nodes: dict[str, tuple[str, Breaker]] = field(default_factory=dict)
    _pairs: dict[Pair, Breaker] = field(default_factory=dict)
    _tidied_at: float = 0.0
    _sieve: FilterCache[Node] = field(default_factory=FilterCache)

    @property
    def has_failures(self) -> bool:
        """Whether there is any breaker."""
        return bool(self._nodes or self._pairs)

    def healthy(self, nodes: Sequence[Node], *, now: float) -> Sequence[Node]:
        """The nodes whose breakers admit a call."""
        return self._sieve.without(nodes, self.blocked_nodes(now=now))

    def proven(self, nodes: Sequence[Node], *, now: float) -> Sequence[Node]:
        """The nodes whose breakers are closed: those half-open take one call at a time."""
        if not self._nodes:
            return nodes
        return [one for one in nodes if self.state(one, now=now) is BreakerState.CLOSED]

    def without(self, nodes: Sequence[Node], shut: frozenset[Node]) -> Sequence[Node]:
        """`nodes` without `shut`; cached, so that repeated calls are cheap."""
        return self._sieve.without(nodes, shut)

    def blocked_nodes(self, *, now: float) -> frozenset[Node]:
        """The nodes whose breakers admit no call."""
        if not self._nodes:
            return NOBODY
        known = (self.registry.at(address) for address in self._nodes)
        return frozenset(node for node in known if node and not self._admits(node, now))

    def pair_usable(self, prefill: Node, decode: Node, *, now: float) -> bool:
        """Whether the prefill node and the KV transfer between the two are healthy."""
        if self._nodes and not self._admits(prefill, now):
            return False
        return self.link_usable(prefill, decode, now=now)

    def link_usable(self, prefill: Node, decode: Node, *, now: float) -> bool:
        """Whether the breaker of the pair, if any, admits a transfer."""
        if not self._pairs:
            return True
        between = self._pairs.get((prefill.node_id, decode.node_id))
        return between is None or between.admits(now=now, heard_at=now)

    def blocked_pairs(self, *, now: float) -> frozenset[Pair]:
        """The pairs whose breakers admit no KV transfer."""
        if not self._pairs:
            return NO_PAIR
        each = self._pairs.items()
        return frozenset(pair for pair, one in each if not one.admits(now=now, heard_at=now))

    def state(self, node: Node, *, now: float) -> BreakerState:
        """The state of the node's breaker."""
        breaker = self._breaker_of(node)
        if breaker is None:
            return BreakerState.CLOSED
        return breaker.state(now=now, heard_at=node.heard_at)

    def breaker_reason(self, node: Node, *, now: float) -> str | None:
        """The last failure, if the breaker is not closed."""
        breaker = self._breaker_of(node)
        shut = self.state(node, now=now) is not BreakerState.CLOSED
        return breaker.last_failure if breaker and shut else None

    def unhealthy_pairs(self, *, now: float) -> Iterator[tuple[Pair, BreakerState]]:
        """The pairs whose breakers are not closed."""
        for pair, breaker in self._pairs.items():
            state = breaker.state(now=now, heard_at=now)
            if state is not BreakerState.CLOSED:
                yield pair, state

    def begin_attempt(
        self, plan: Plan, *, now: float, after: NodeFailed | ProxyExhausted | None = None
    ) -> None:
        """Record that an attempt begins. `after`: the failure of the one before."""
        self.attempts += 1
        if after is not None:
            self.retries[after.cause] += 1
        self.begin_call(plan, now=now)

    def begin_call(self, plan: Plan, *, now: float) -> None:
        """Record that nodes are called: the one call that half-open breakers let through."""
        if self.has_failures and now - self._tidied_at >= TIDY_S:
            self._tidied_at = now
            self.forget(now=now)
        for breaker in self._breakers(plan):
            breaker.begin(now=now)

    def end_attempt(self, plan: Plan, *, begun: float) -> None:
        """Record that an attempt is over: half-open breakers without a result admit another."""
        for breaker in self._breakers(plan):
            breaker.end(begun=begun)

    def record_event(
        self, node: Node, event: Event, plan: Plan, *, begun: float, now: float
    ) -> None:
        """Record an event of an attempt that began at `begun`; a token is a success.

        So is the end of a prefill leg: nodes of vLLM send nothing else.
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
        """Record that a call of an attempt that began at `begun` succeeded."""
        if self._nodes and (breaker := self._breaker_of(node)):
            breaker.succeeded(begun=begun, now=now)

    def record_failure(
        self,
        failure: NodeFailed,
        nodes: Iterable[Node] = (),
        *,
        begun: float,
        now: float,
    ) -> str | None:
        """Record that a call of an attempt that began at `begun` on `nodes` failed.

        Returns a warning for the log if only an operator can fix it.
        """
        if failure.pair is not None:
            self._pair_failed(failure.pair, begun, now)
            return None
        known = self.registry.find(failure.node_id)
        node = known or next((one for one in nodes if one.node_id == failure.node_id), None)
        if node is None or failure.cause not in TROUBLES or _has_left(node, failure):
            return None
        address = node.address
        _add(self.failures, address, self.failures.get(address, 0) + 1)
        if known is None:  # a node that hangs is forgotten before its call fails
            return None
        return self._node_failed(known, failure, begun, now)

    def forget(self, *, now: float) -> None:
        """Drop breakers that are reset, and those of nodes that left long ago."""
        for address, (_, breaker) in list(self._nodes.items()):
            gone = self.registry.at(address) is None and breaker.is_stale(now=now)
            if gone or breaker.is_reset(now=now):
                del self._nodes[address]
        for pair, breaker in list(self._pairs.items()):
            if not self._are_pair(pair) or breaker.is_reset(now=now):
                del self._pairs[pair]

    def _are_pair(self, pair: Pair) -> bool:
        """Whether both nodes are registered, in these roles."""
        prefill, decode = map(self.registry.find, pair)
        if prefill is None or decode is None:
            return False
        return prefill.role is Role.PREFILL and decode.role is Role.DECODE

    def _node_failed(
        self, node: Node, failure: NodeFailed, begun: float, now: float
    ) -> str | None:
        address, known = node.address, self._breaker_of(node)
        breaker = Breaker(self.rules) if known is None else known
        _add(self._nodes, address, (node.node_id, breaker))
        sure = not failure.cause.node_alive
        opens = breaker.failed(begun=begun, now=now, sure=sure)
        self.opened["node"] += opens
        breaker.last_failure = str(failure).removeprefix(f"{node.node_id}: ")
        if opens and failure.cause is Cause.SIGNATURE:
            return f"the node at {address} gets no work for now: {breaker.last_failure}"
        return None

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
        """The breaker at the node's address; after a restart of the node it is half-open."""
        address = node.address
        known = self._nodes.get(address)
        if known is None:
            return None
        name, breaker = known
        if name != node.node_id:
            breaker.restart()
            self._nodes[address] = node.node_id, breaker
        return breaker


def _has_left(node: Node, failure: NodeFailed) -> bool:
    """Whether the node announced that it stops, and then was unreachable."""
    stops = node.registration.state is State.DRAINING
    return stops and failure.cause is Cause.UNREACHABLE


def _add(entries: dict[Key, Value], key: Key, value: Value) -> None:
    """Add as the latest entry; beyond `MOST_KNOWN` the oldest are dropped."""
    entries.pop(key, None)
    entries[key] = value
    while len(entries) > MOST_KNOWN:
        del entries[next(iter(entries))]
