"""A proxy's planner over simulated nodes, in virtual time: fast and repeatable.

Plans, their claims, learning and the registry are the proxy's own code. Nodes
(bench/routing/machines.py), links and heartbeats are simulated. Nodes do not fetch from each
other's prefix caches here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random

from api.generator import PromptEvent, StageEvent, TokenEvent
from bench.routing.machines import SimulatedJob, SimulatedNode, Speeds, StepEvent
from discovery.node import Node
from discovery.registration import BEAT_S, Layout, Load, Registration, Role
from discovery.registry import Registry
from engine.request import FinishReason, Request
from proxy.config import LocalPrefill, Policy
from proxy.routing.building import build_planner
from proxy.routing.in_flight import PlanInFlight
from proxy.routing.plan import RoutingQuery
from proxy.routing.planner import Planner
from proxy.routing.prefix_hashes import hash_prefixes

BLOCK = 16
TOKEN_BYTES = 131_072  # KV of one token


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes, and the links between them."""

    prefill: int = 4
    decode: int = 4
    speeds: Speeds = field(default_factory=Speeds)
    cache_tokens: int = 400_000
    link_bytes_per_s: float = 10e9
    latency_s: float = 0.003  # of a hand-over
    call_s: float = 0.001


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request, the time of its arrival, and its answer."""

    at: float
    request: Request
    answer: tuple[int, ...]


@dataclass(slots=True)
class Outcome:
    """One request's times, in seconds since its arrival; `split`: a prefill node took part."""

    tokens: int
    cached: int = 0
    first_s: float = 0.0
    finish_s: float = 0.0
    split: bool = True
    foretold: tuple[float, float] | None = None


@dataclass(slots=True, eq=False)
class _SimulatedRequest:
    arrival: Arrival
    flight: PlanInFlight
    outcome: Outcome


@dataclass(slots=True)
class Simulation:
    """One run. The same seed and arrivals give the same outcomes."""

    policy: Policy
    local: LocalPrefill = "never"
    cluster: Cluster = field(default_factory=Cluster)
    seed: int = 0
    now: float = 0.0
    _registry: Registry = field(default_factory=Registry)
    _machines: dict[str, SimulatedNode] = field(default_factory=dict)
    _roles: dict[str, Role] = field(default_factory=dict)
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)
    _rides: dict[int, _SimulatedRequest] = field(default_factory=dict)
    _busy_until: dict[str, float] = field(default_factory=dict)
    _left: int = 0
    _outcomes: list[Outcome] = field(default_factory=list)
    _planner: Planner = field(init=False)

    def run(self, arrivals: Sequence[Arrival]) -> list[Outcome]:
        """Simulate all requests; their outcomes in the same order."""
        self._build()
        self._beat()
        self._left = len(arrivals)
        self._outcomes = [Outcome(len(one.request.prompt)) for one in arrivals]
        for number, one in enumerate(arrivals):
            self._later(one.at, partial(self._arrive, number, one))
        while self._left:
            self.now, _, event = heappop(self._events)
            event()
        assert not len(self._planner.state.claims)
        return self._outcomes

    def _build(self) -> None:
        cluster = self.cluster
        chance = Random(self.seed)
        self._planner = build_planner(self.policy, self.policy, self.local, chance)
        for role, number in ((Role.PREFILL, cluster.prefill), (Role.DECODE, cluster.decode)):
            for index in range(number):
                name = f"{role.lower()}{index}"
                self._machines[name] = SimulatedNode(name, cluster.speeds, cluster.cache_tokens)
                self._roles[name] = role

    def _arrive(self, number: int, arrival: Arrival) -> None:
        ask = RoutingQuery.of(arrival.request, self.now)
        decodes = self._registry.paired(Role.DECODE, now=self.now)
        plan = self._planner.plan(ask, decodes, self._partners)
        outcome = self._outcomes[number]
        outcome.split, outcome.foretold = plan.prefill is not None, plan.estimated_s
        self._rides[number] = _SimulatedRequest(
            arrival, self._planner.start(plan, ask).claim(), outcome
        )
        job = SimulatedJob(number, ask.prefix_hashes, ask.num_tokens, len(arrival.answer) - 1)
        self._later(self.cluster.call_s, partial(self._take, plan.first, job))

    def _partners(self, decode: Node) -> Sequence[Node]:
        return self._registry.partners(decode, now=self.now)

    def _later(self, seconds: float, event: Callable[[], None]) -> None:
        heappush(self._events, (self.now + seconds, next(self._order), event))

    def _beat(self) -> None:
        total = self.cluster.cache_tokens // BLOCK
        layout: Layout = {"block_size": BLOCK, "block_bytes": [TOKEN_BYTES * BLOCK]}
        for name, machine in self._machines.items():
            load = Load(machine.waiting, machine.running, total, total)
            said = Registration(
                self._roles[name], f"{name}:80", "", name, "m", "f", layout, load=load
            )
            self._registry.apply(said, now=self.now)
        self._later(BEAT_S, self._beat)

    def _take(self, node: Node, job: SimulatedJob) -> None:
        self._machines[node.node_id].take(job)
        self._turn(node)

    def _turn(self, node: Node) -> None:
        """Begin a step on a node, if none is running and there is something to do."""
        machine = self._machines[node.node_id]
        if machine.working or (step := machine.begin(self.now)) is None:
            return
        machine.working = True
        seconds, admitted = step
        for one in admitted:
            self._hear(node, one)
        self._later(seconds, partial(self._end, node))

    def _end(self, node: Node) -> None:
        machine = self._machines[node.node_id]
        machine.working = False
        for one in list(machine.end()):
            self._hear(node, one)
        self._turn(node)

    def _hear(self, node: Node, happened: StepEvent) -> None:
        ride, job = self._rides[happened.job.number], happened.job
        if happened.kind == "admitted":
            ride.outcome.cached = job.cached or 0
            ride.flight.record_event(node, PromptEvent(job.cached or 0), self.now)
        elif happened.kind == "over":
            self._finish(node, ride, job)
        else:
            self._first(node, ride, job)

    def _first(self, node: Node, ride: _SimulatedRequest, job: SimulatedJob) -> None:
        """The prompt was run: its first token goes to the client, its KV to a decode node."""
        ride.outcome.first_s = self.now - ride.arrival.at
        plan = ride.flight.plan
        ride.flight.record_event(node, TokenEvent(ride.arrival.answer[:1]), self.now)
        if plan.prefill is None:
            self._decode(node, ride, job)
            return
        arrived_s, num_bytes = self._move(plan.prefill, plan.decode, job)
        moved = StageEvent("transfer", arrived_s, num_bytes)
        self._later(arrived_s, partial(self._arrived, plan.decode, ride, job, moved))

    def _move(self, prefill: Node, decode: Node, job: SimulatedJob) -> tuple[float, int]:
        """Seconds from now until a prompt's KV has been transferred, and its bytes.

        Chunks are transferred as they are run, so at least the last one is left. A node
        transfers one prompt's KV at a time.
        """
        cluster, there = self.cluster, self._machines[decode.node_id].cached(job.names)
        num_bytes = (job.tokens - there) * TOKEN_BYTES
        before = (self.now - job.begun) * cluster.link_bytes_per_s
        rest = min(num_bytes, max(job.last_chunk * TOKEN_BYTES, num_bytes - before))
        ends = prefill.node_id, decode.node_id
        begins = max(self.now, *(self._busy_until.get(end, 0.0) for end in ends))
        done = begins + rest / cluster.link_bytes_per_s
        self._busy_until.update(dict.fromkeys(ends, done))
        return done + cluster.latency_s - self.now, num_bytes

    def _arrived(
        self, decode: Node, ride: _SimulatedRequest, job: SimulatedJob, moved: StageEvent
    ) -> None:
        ride.flight.record_event(decode, moved, self.now)
        ride.flight.record_event(decode, TokenEvent(ride.arrival.answer[:1]), self.now)
        self._machines[decode.node_id].keep(job.names)
        self._decode(decode, ride, job)

    def _decode(self, node: Node, ride: _SimulatedRequest, job: SimulatedJob) -> None:
        if job.steps:
            self._machines[node.node_id].join(job)
            self._turn(node)
        else:
            self._finish(node, ride, job)

    def _finish(self, node: Node, ride: _SimulatedRequest, job: SimulatedJob) -> None:
        arrival, flight = ride.arrival, ride.flight
        request = arrival.request
        names = hash_prefixes(b"", request.prompt + arrival.answer, job.names)
        self._machines[node.node_id].keep(names)
        ride.outcome.finish_s = self.now - arrival.at
        end = TokenEvent(arrival.answer[1:], FinishReason.LENGTH)
        flight.record_event(node, end, self.now)
        flight.release(self.now)
        del self._rides[job.number]
        self._left -= 1
