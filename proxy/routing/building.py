"""Builds policies by name."""

from random import Random

from proxy.config import LocalPrefill
from proxy.config import Policy as PolicyName
from proxy.routing.capacity import NodeCapacity
from proxy.routing.cost_based import CostBased
from proxy.routing.in_flight import RoutingState
from proxy.routing.planner import Planner
from proxy.routing.policies import LeastLoaded, Policy, RandomChoice, RoundRobin
from proxy.routing.prefix_aware import PrefixAware
from proxy.routing.sessions import SessionAffinity

EVERY = NodeCapacity()


def build_planner(
    prefill: PolicyName,
    decode: PolicyName,
    local: LocalPrefill,
    chance: Random,
    capacity: NodeCapacity = EVERY,
) -> Planner:
    """A planner and the state that all its policies read; `capacity` limits each node."""
    books = RoutingState()
    judge = CostBased(books.claims, books.prefixes, books.costs, chance)
    first = _policy(prefill, judge, books, chance)
    turns = prefill == decode == "round_robin"  # it counts per role and partner itself
    rest = first if turns else _policy(decode, judge, books, chance)
    return Planner(first, rest, judge, books, local, capacity=capacity)


def _policy(name: PolicyName, judge: CostBased, books: RoutingState, chance: Random) -> Policy:
    least = LeastLoaded(books.claims, chance)
    match name:
        case "planned":
            return judge
        case "prefix_aware":
            return PrefixAware(books.prefixes, books.claims, chance)
        case "session":
            return SessionAffinity(least)
        case "round_robin":
            return RoundRobin()
        case "random":
            return RandomChoice(chance)
        case _:
            return least
