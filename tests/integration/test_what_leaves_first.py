"""A call and a token leave before what they teach is booked, and it is booked all the same."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from api.generator import Event, Leg, TokenEvent
from discovery.node import Node
from discovery.registration import Role
from engine.request import Request, RequestId, Sampling
from proxy.routing.planner import Planner
from tests.fakes.cluster import Cluster

REQUEST = Request(RequestId("r"), tuple(range(14)), Sampling(6))


@dataclass
class Watched(Cluster):
    """Notes what is booked at each node when it is called."""

    booked: list[int] = field(default_factory=list)

    def generate(self, node: Node, request: Request, leg: Leg) -> AsyncGenerator[Event]:
        self.booked.append(requests_at(self, node))
        return super().generate(node, request, leg)


def planner(cluster: Cluster) -> Planner:
    found = cluster.pipeline.planner
    assert isinstance(found, Planner)
    return found


def requests_at(cluster: Cluster, node: Node) -> int:
    return planner(cluster).state.claims.at(node).requests


def prompts_learnt(cluster: Cluster) -> int:
    (prefill,) = cluster.registry.nodes(Role.PREFILL, now=cluster.now)
    return planner(cluster).state.costs.prompt(prefill).count


async def until_token(events: AsyncGenerator[Event]) -> None:
    async for event in events:
        if isinstance(event, TokenEvent):
            return


async def test_a_call_leaves_before_its_plan_is_booked() -> None:
    cluster = Watched()
    stream = cluster.pipeline.stream(REQUEST)
    await until_token(stream)
    prefill, decode = [cluster.registry.nodes(role, now=0)[0] for role in Role]
    assert cluster.booked == [0, 1], "decode's place is taken by the time it is called"
    assert requests_at(cluster, decode) == 1
    await stream.aclose()
    assert requests_at(cluster, prefill) == requests_at(cluster, decode) == 0


async def test_a_token_is_past_before_it_is_learnt_from() -> None:
    cluster = Cluster()
    stream = cluster.pipeline.stream(REQUEST)
    await until_token(stream)
    assert prompts_learnt(cluster) == 0
    await until_token(stream)
    assert prompts_learnt(cluster) == 1
    await stream.aclose()


async def test_whoever_leaves_with_a_token_in_hand_has_taught_what_it_took() -> None:
    cluster = Cluster()
    stream = cluster.pipeline.stream(REQUEST)
    await until_token(stream)
    await stream.aclose()
    assert prompts_learnt(cluster) == 1
    assert all(requests_at(cluster, node) == 0 for node in cluster.registry.all())
