"""Nodes change their roles where requests wait for long, and the others can do the work."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.load_window import LoadWindow, NodeLoad, RoleChange
from discovery.registration import Role

P, D = Role.PREFILL, Role.DECODE
LEAST = {P: 1, D: 1}
WINDOW_S = 3.0
IDLE = NodeLoad("", P, True, 0, 0, 0, 0, 100, 8)


def prefill(name: str, **more: Any) -> NodeLoad:  # noqa: ANN401  any field
    return replace(IDLE, address=name, **more)


def decode(name: str, **more: Any) -> NodeLoad:  # noqa: ANN401
    return replace(IDLE, address=name, role=D, **more)


def seen(
    *nodes: NodeLoad, queued: int = 0, window: LoadWindow | None = None, since: float = 0.0
) -> RoleChange | None:
    """What comes of a whole window of the same; nothing before its end."""
    window = window or LoadWindow(WINDOW_S, LEAST)
    for second in range(int(WINDOW_S)):
        assert window.observe(nodes, queued, now=since + second) is None
    return window.observe(nodes, queued, now=since + WINDOW_S)


SHORT_OF_DECODE = prefill("p0", busy=0.5), prefill("p1", busy=0.1), decode("d0", waiting=1)
SHORT_OF_PREFILL = prefill("p0", waiting=1), decode("d0", running=3), decode("d1", running=2)


def test_answers_wait_and_prefill_nodes_have_time() -> None:
    assert seen(*SHORT_OF_DECODE) == ("p1", D, "1.0 requests wait for 1 decode node")


def test_prompts_wait_and_decode_nodes_have_room() -> None:
    assert seen(*SHORT_OF_PREFILL) == ("d1", P, "1.0 requests wait for 1 prefill node")


def test_both_or_none_wait() -> None:
    spare = prefill("p1"), decode("d1")
    assert seen(prefill("p0", waiting=2), decode("d0", waiting=2), *spare) is None
    assert seen(prefill("p0", waiting=1.9), decode("d0", waiting=1.9), *spare) is None


@pytest.mark.parametrize(
    ("busy", "gives"), [((0.4, 0.4), True), ((0.4, 0.41), False), ((1, 0, 0), True)]
)
def test_the_other_prefill_nodes_have_to_do_the_work(
    busy: tuple[float, ...], gives: bool
) -> None:
    nodes = [prefill(f"p{i}", busy=part) for i, part in enumerate(busy)]
    assert bool(seen(*nodes, decode("d0", waiting=1))) is gives


@pytest.mark.parametrize(
    ("load", "gives"),
    [
        ({"running": 3.2}, True),
        ({"running": 3.3}, False),
        ({"running": 30, "seats": None}, True),
        ({"used_blocks": 40}, True),
        ({"used_blocks": 41}, False),
    ],
)
def test_the_other_decode_nodes_have_to_have_room(load: dict[str, Any], gives: bool) -> None:
    nodes = [decode(name, **load) for name in ("d0", "d1")]
    assert bool(seen(prefill("p0", waiting=1), *nodes)) is gives


@pytest.mark.parametrize("nodes", [SHORT_OF_DECODE, SHORT_OF_PREFILL])
def test_each_role_keeps_its_least(nodes: tuple[NodeLoad, ...]) -> None:
    assert seen(*nodes, window=LoadWindow(WINDOW_S, {P: 2, D: 2})) is None
    assert seen(*nodes[:1], nodes[-1]) is None


def test_what_waits_at_the_proxy_waits_for_those_that_are_full() -> None:
    full, busy = decode("d0", running=7.2), prefill("p0", busy=0.9)
    assert seen(prefill("p0"), prefill("p1"), full, queued=1)
    assert not seen(prefill("p0"), prefill("p1"), replace(full, running=7.1), queued=1)
    assert seen(busy, decode("d0"), decode("d1"), queued=1)
    assert not seen(replace(busy, busy=0.8), decode("d0"), decode("d1"), queued=1)
    assert not seen(prefill("p0"), prefill("p1"), replace(full, seats=None), queued=1)


@pytest.mark.parametrize("waiting", [0, 9])
def test_one_role_alone_has_nobody_to_ask(waiting: float) -> None:
    assert seen(decode("d0", waiting=waiting), decode("d1", waiting=waiting)) is None
    assert seen(prefill("p0", waiting=waiting), prefill("p1", waiting=waiting)) is None


def test_a_moment_is_no_window() -> None:
    window = LoadWindow(WINDOW_S, LEAST)
    calm = [replace(node, waiting=0) for node in SHORT_OF_DECODE]
    window.observe(calm, 0, now=0)
    window.observe(calm, 0, now=1)
    assert window.observe(SHORT_OF_DECODE, 0, now=WINDOW_S) is None
    full = prefill("p0"), prefill("p1"), decode("d0", running=8)
    for queued, now in ((0, 4), (0, 5), (2, 7)):
        assert window.observe(full, queued, now=now) is None
    assert seen(*SHORT_OF_DECODE, window=window, since=8.0)


def test_who_joins_or_leaves_begins_a_new_window() -> None:
    window = LoadWindow(WINDOW_S, LEAST)
    window.observe(SHORT_OF_DECODE, 0, now=0)
    more = *SHORT_OF_DECODE, prefill("p2")
    window.observe(more, 0, now=2)
    assert window.observe(more, 0, now=4) is None
    assert window.observe(more, 0, now=5)


def test_while_a_node_changes_no_other_one_does() -> None:
    window = LoadWindow(WINDOW_S, LEAST)
    nodes = *SHORT_OF_DECODE, prefill("p2")
    assert seen(*nodes, window=window) == ("p2", D, "1.0 requests wait for 1 decode node")
    leaving = *SHORT_OF_DECODE, prefill("p2", takes_work=False)
    for second in range(100):
        assert window.observe(leaving, 0, now=4.0 + second) is None
    changed = *SHORT_OF_DECODE, decode("p2", waiting=1)
    assert seen(*changed, window=window, since=200.0) == (
        *("p1", D, "2.0 requests wait for 2 decode nodes"),
    )


def test_an_operator_may_drain_a_node_that_has_changed() -> None:
    window = LoadWindow(WINDOW_S, LEAST)
    nodes = *SHORT_OF_DECODE, prefill("p2")
    assert seen(*nodes, window=window)
    changed = decode("p2", waiting=1)
    window.observe((*SHORT_OF_DECODE, changed), 0, now=10)
    drained = *SHORT_OF_DECODE, replace(changed, takes_work=False)
    assert seen(*drained, window=window, since=11.0)


@pytest.mark.parametrize("then", [(), (prefill("p2"),)])
def test_a_change_that_does_not_come_is_not_awaited(then: Iterable[NodeLoad]) -> None:
    """The node is gone, or its order was cancelled."""
    window = LoadWindow(WINDOW_S, LEAST)
    assert seen(*SHORT_OF_DECODE, prefill("p2"), window=window)
    assert seen(*SHORT_OF_DECODE, *then, window=window, since=4.0)


def test_nodes_that_take_no_work_do_not_count() -> None:
    out = prefill("p2", takes_work=False), decode("d1", takes_work=False, waiting=50)
    assert seen(*SHORT_OF_PREFILL[:1], *SHORT_OF_PREFILL[1:2], *out) is None
    assert seen(*SHORT_OF_DECODE, *out) == ("p1", D, "1.0 requests wait for 1 decode node")


@dataclass
class Fluid:
    """Nodes that each run a prompt in `prompt_s`, or 8 answers of `answer_s` at once."""

    roles: dict[str, Role]
    rate: float
    prompt_s: float
    answer_s: float
    prompts: float = 0.0
    answers: float = 0.0
    running: float = 0.0
    changes: list[RoleChange] = field(default_factory=list)

    def run(self, seconds: int) -> None:
        """One balancer looks on, and what it wants is done at once."""
        window = LoadWindow(30.0, LEAST)
        for second in range(seconds):
            if change := window.observe(self._second(), 0, now=float(second)):
                self.changes.append(change)
                self.roles[change.address] = change.role

    def count(self, role: Role) -> int:
        """How many have it."""
        return list(self.roles.values()).count(role)

    def _second(self) -> list[NodeLoad]:
        prefills, decodes = self.count(P), self.count(D)
        self.running -= min(self.running, self.running / self.answer_s)
        self.prompts += self.rate
        done = min(self.prompts, prefills / self.prompt_s)
        self.prompts -= done
        self.answers += done
        begun = max(0.0, min(self.answers, 8 * decodes - self.running))
        self.answers -= begun
        self.running += begun
        at_work: dict[Role, dict[str, Any]] = {
            P: {"waiting": self.prompts / prefills, "busy": done * self.prompt_s / prefills},
            D: {"waiting": self.answers / decodes, "running": self.running / decodes},
        }
        return [replace(IDLE, address=a, role=r, **at_work[r]) for a, r in self.roles.items()]


@given(
    st.integers(3, 8), st.integers(1, 7), st.floats(0.1, 8), st.floats(0.1, 2), st.floats(2, 20)
)
def test_roles_settle_where_nothing_waits_if_there_is_such_a_split(
    nodes: int, prefills: int, rate: float, prompt_s: float, answer_s: float
) -> None:
    roles = {f"n{i}": P if i < min(prefills, nodes - 1) else D for i in range(nodes)}
    cluster = Fluid(roles, rate, prompt_s, answer_s)
    cluster.run(3000)
    before = len(cluster.changes)
    cluster.run(1000)
    assert len(cluster.changes) == before <= nodes, "it does not go to and fro"
    work, seats = rate * prompt_s, rate * answer_s / 8
    if any(work <= 0.75 * p and seats <= 0.75 * (nodes - p) for p in range(1, nodes)):
        assert cluster.prompts < nodes
        assert cluster.answers < nodes
