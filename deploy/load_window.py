"""Which node of a model should change its role, by what waits and what is free. Pure.

All requests pass through both roles at the same rate, so more of them waiting at one role means
a longer wait there (Little's law). A role is short of nodes if, averaged over a window, at
least WAITING requests wait for each of them. The other role gives a node away if the rest of
its nodes would be at most ROOM full: prefill nodes by the time in which they work at all,
decode nodes by their seats and their blocks. Afterwards a new window begins.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

from discovery.registration import Role

WAITING = 1.0
ROOM = 0.8
FULL = 0.9  # of seats or of time: what waits at the proxy waits for these nodes


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """A node at one moment, or on average; `busy` is the part of the time in which it works.

    `takes_work`: it is not draining, and the proxy sends it requests. `seats` is None if it
    registers none.
    """

    address: str
    role: Role
    takes_work: bool
    waiting: float
    running: float
    busy: float
    used_blocks: float
    total_blocks: int
    seats: int | None


class RoleChange(NamedTuple):
    """The node that should have this role, and why."""

    address: str
    role: Role
    why: str


@dataclass(slots=True)
class LoadWindow:
    """The nodes of one model, of which each role keeps `least`; a window lasts `window_s`."""

    window_s: float
    least: Mapping[Role, int]
    _since: float = 0.0
    _queued: list[int] = field(default_factory=list)
    _looks: dict[str, list[NodeLoad]] = field(default_factory=dict)
    _changing: RoleChange | None = None

    def observe(
        self, nodes: Iterable[NodeLoad], queued: int, *, now: float
    ) -> RoleChange | None:
        """Look at all nodes of the model, and at the requests in the proxy's queue.

        Returns a change once the window is over, if one is due. There is no other one until
        the node takes work again, in whichever role. The window begins anew when nodes join,
        leave, stop taking work, or change.
        """
        all_nodes = {node.address: node for node in nodes}
        if self._changing:
            changing = all_nodes.get(self._changing.address)
            if changing and not changing.takes_work:
                return None
            self._changing = None
        working = {name: node for name, node in all_nodes.items() if node.takes_work}
        if self._roles() != {name: node.role for name, node in working.items()}:
            self._begin(working, now)
        for name, node in working.items():
            self._looks[name].append(node)
        self._queued.append(queued)
        if now - self._since < self.window_s:
            return None
        means = [_mean(looks) for looks in self._looks.values()]
        self._changing = _choose(means, fmean(self._queued), self.least)
        self._begin(working, now)
        return self._changing

    def _roles(self) -> dict[str, Role | None]:
        """Of the nodes that the window is about."""
        return {name: looks[-1].role for name, looks in self._looks.items() if looks}

    def _begin(self, names: Iterable[str], now: float) -> None:
        self._since, self._queued = now, []
        self._looks = {name: [] for name in names}


def _mean(looks: Sequence[NodeLoad]) -> NodeLoad:
    return replace(
        looks[-1],
        waiting=fmean(one.waiting for one in looks),
        running=fmean(one.running for one in looks),
        busy=fmean(one.busy for one in looks),
        used_blocks=fmean(one.used_blocks for one in looks),
    )


def _choose(
    nodes: Sequence[NodeLoad], queued: float, least: Mapping[Role, int]
) -> RoleChange | None:
    prefill = [node for node in nodes if node.role is Role.PREFILL]
    decode = [node for node in nodes if node.role is Role.DECODE]
    if not prefill or not decode:
        return None
    prompts, answers = (sum(one.waiting for one in some) for some in (prefill, decode))
    seats = _seats(decode)
    if seats is not None and sum(one.running for one in decode) >= FULL * seats:
        answers += queued
    elif sum(one.busy for one in prefill) >= FULL * len(prefill):
        prompts += queued
    short = prompts >= WAITING * len(prefill), answers >= WAITING * len(decode)
    if short == (False, True) and (given := _spare_prefill(prefill, least[Role.PREFILL])):
        return _change(given, Role.DECODE, answers, len(decode))
    if short == (True, False) and (given := _spare_decode(decode, least[Role.DECODE])):
        return _change(given, Role.PREFILL, prompts, len(prefill))
    return None


def _spare_prefill(nodes: Sequence[NodeLoad], least: int) -> NodeLoad | None:
    """The least busy prefill node, if the others can do its work."""
    given, *rest = sorted(nodes, key=lambda one: (one.busy, one.address))
    fits = sum(one.busy for one in nodes) <= ROOM * len(rest)
    return given if len(rest) >= least and fits else None


def _spare_decode(nodes: Sequence[NodeLoad], least: int) -> NodeLoad | None:
    """The decode node with the fewest requests, if the others have room for them."""
    given, *rest = sorted(nodes, key=lambda one: (one.running, one.address))
    seats = _seats(rest)
    fits = seats is None or sum(one.running for one in nodes) <= ROOM * seats
    blocks = ROOM * sum(one.total_blocks for one in rest)
    fits = fits and sum(one.used_blocks for one in nodes) <= blocks
    return given if len(rest) >= least and fits else None


def _seats(nodes: Iterable[NodeLoad]) -> int | None:
    """Of all together; None if one does not say."""
    seats = [one.seats for one in nodes]
    return None if None in seats else sum(one for one in seats if one is not None)


def _change(node: NodeLoad, role: Role, waiting: float, have: int) -> RoleChange:
    many = f"{have} {role.name.lower()} node{'s' if have > 1 else ''}"
    return RoleChange(node.address, role, f"{waiting:.1f} requests wait for {many}")
