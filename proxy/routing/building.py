"""Policies by their names."""

from random import Random

from proxy.config import LocalPrefill
from proxy.config import Policy as PolicyName
from proxy.routing.flight import Books
from proxy.routing.planned import Planned
from proxy.routing.planner import Planner
from proxy.routing.policies import AnyOfThem, LeastLoaded, Policy, RoundRobin
from proxy.routing.prefix_aware import PrefixAware
from proxy.routing.room import Room
from proxy.routing.sessions import BySession

EVERY = Room()


def build_planner(
    prefill: PolicyName,
    decode: PolicyName,
    local: LocalPrefill,
    chance: Random,
    room: Room = EVERY,
) -> Planner:
    """With books of its own, which all its policies read; each node has so much room."""
    books = Books()
    judge = Planned(books.claims, books.prefixes, books.costs, chance)
    first = _policy(prefill, judge, books, chance)
    turns = prefill == decode == "round_robin"  # it counts per role and partner itself
    rest = first if turns else _policy(decode, judge, books, chance)
    return Planner(first, rest, judge, books, local, room=room)


def _policy(name: PolicyName, judge: Planned, books: Books, chance: Random) -> Policy:
    least = LeastLoaded(books.claims, chance)
    match name:
        case "planned":
            return judge
        case "prefix_aware":
            return PrefixAware(books.prefixes, books.claims, chance)
        case "session":
            return BySession(least)
        case "round_robin":
            return RoundRobin()
        case "random":
            return AnyOfThem(chance)
        case _:
            return least
