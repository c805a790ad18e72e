"""What is told of the cluster."""

from typing import Any

import pytest

from discovery.registration import Load, Registration, Role, State
from discovery.registry import Registry
from proxy.admin.status import cluster_status, health
from proxy.errors import NodeFailed
from proxy.health.health import Health
from proxy.models.model_pools import ContextLimit


def known(*roles: Role, **more: Any) -> Registry:  # noqa: ANN401
    registry = Registry(ttl_s=5)
    for i, role in enumerate(roles):
        one = Registration(role, f"h:{i}", "h:0", f"n{i}", "m", "f", **more)
        registry.apply(one, now=0)
    return registry


def told(registry: Registry, **more: Any) -> Any:  # noqa: ANN401
    return cluster_status(registry, Health(registry), **more)


P, D = Role.PREFILL, Role.DECODE


@pytest.mark.parametrize(
    ("roles", "status", "said"),
    [
        ((), 503, "unavailable"),
        ((P,), 503, "unavailable"),
        ((D,), 200, "degraded"),
        ((P, D, D), 200, "ok"),
    ],
)
def test_health(roles: tuple[Role, ...], status: int, said: str) -> None:
    code, body = health(known(*roles), now=0)
    assert (code, body["status"]) == (status, said)
    assert (body["prefill_nodes"], body["decode_nodes"]) == (roles.count(P), roles.count(D))


@pytest.mark.parametrize(
    ("roles", "status", "said"),
    [
        ((), 503, "unavailable"),
        ((P,), 200, "ok"),
        ((D,), 200, "degraded"),
        ((P, D), 200, "ok"),
    ],
)
def test_what_makes_vectors_only_wants_prefill_nodes(
    roles: tuple[Role, ...], status: int, said: str
) -> None:
    code, body = health(known(*roles), now=0, generates=False)
    assert (code, body["status"]) == (status, said)
    whole = told(known(*roles), now=0, in_flight=0, generates=False)
    assert whole["status"] == said


def test_without_decode_nodes_the_prefill_nodes_say_how_long_a_prompt_may_be() -> None:
    assert ContextLimit(known(P, max_model_len=9)).shortest(now=0) == 9


def test_who_drains_or_is_late_answers_nothing() -> None:
    assert health(known(D, state=State.DRAINING), now=0)[0] == 503
    assert health(known(D), now=6)[0] == 503


def test_status_has_vllms_keys_and_all_of_every_node() -> None:
    registry = known(P, D, load=Load(1, 2, 3, 4), max_model_len=99, max_num_seqs=8)
    breakers = Health(registry)
    breakers.record_failure(NodeFailed("n0", "connection lost"), begun=0, now=0)
    said = cluster_status(registry, breakers, now=2, in_flight=7)
    assert (said["prefill_node_count"], said["decode_node_count"]) == (1, 1)
    assert (said["prefill_nodes"], said["decode_nodes"]) == (["h:0"], ["h:1"])
    assert (said["status"], said["requests_in_flight"]) == ("ok", 7)
    assert said["nodes"][0] == {
        "role": "prefill",
        "http_address": "h:0",
        "zmq_address": "h:0",
        "node_id": "n0",
        "model": "m",
        "adapters": [],
        "fingerprint": "f",
        "max_model_len": 99,
        "max_num_seqs": 8,
        "state": "ready",
        "load": {"waiting": 1, "running": 2, "free_blocks": 3, "total_blocks": 4},
        "heard_s_ago": 2,
        "breaker": "open",
        "trouble": "connection lost",
        "static": False,
        "failures": 1,
        "fits": True,
        "misfit": None,
    }


def test_status_says_how_it_is() -> None:
    assert told(known(D), now=2, in_flight=0)["status"] == "degraded"
    assert told(known(D), now=6, in_flight=0)["status"] == "unavailable"


def test_status_says_who_fits_nobody_and_why() -> None:
    registry = known(P)
    registry.apply(Registration(D, "h:1", "h:0", "n1", "m", "other"), now=0)
    said = [
        (node["fits"], node["misfit"]) for node in told(registry, now=0, in_flight=0)["nodes"]
    ]
    assert said[0] == (False, "fingerprint is f here and other on h:1")
    assert not said[1][0]


def test_prefill_nodes_that_fit_no_decode_node_are_no_better_than_none() -> None:
    registry = known(P)
    registry.apply(Registration(D, "h:1", "h:0", "n1", "m", "other"), now=0)
    code, body = health(registry, now=0)
    assert (code, body["status"], body["prefill_nodes"]) == (200, "degraded", 1)
    registry.apply(Registration(D, "h:2", "h:0", "n2", "m", "f"), now=0)
    assert health(registry, now=0)[1]["status"] == "ok"


def test_who_fits_nobody_does_not_shorten_the_context() -> None:
    registry = known(P, D, max_model_len=99)
    registry.apply(Registration(D, "h:9", "h:0", "liar", "m", "other", max_model_len=1), now=0)
    assert ContextLimit(registry).shortest(now=0) == 99
    registry.remove("h:0")
    assert ContextLimit(registry).shortest(now=0) == 1


def test_the_context_is_the_shortest_that_is_told() -> None:
    assert ContextLimit(known()).shortest(now=0) is None
    registry = known(P, max_model_len=5)
    for i, length in enumerate((100, 50, None)):
        one = Registration(D, f"d:{i}", "h:0", f"d{i}", max_model_len=length)
        registry.apply(one, now=0)
    assert ContextLimit(registry).shortest(now=0) == 50


def test_the_context_follows_what_nodes_say() -> None:
    registry = known(P, D, max_model_len=99)
    context = ContextLimit(registry)
    assert context.shortest(now=0) == context.shortest(now=0) == 99
    shorter = Registration(D, "h:1", "h:0", "again", "m", "f", max_model_len=9)
    registry.apply(shorter, now=0)
    assert context.shortest(now=0) == 9
    registry.expire(now=1000)
    assert context.shortest(now=1000) is None
