"""Each node is counted once, under what keeps it from work."""

from prometheus_client import CollectorRegistry

from discovery.registration import Registration, Role, State
from discovery.registry import Registry
from proxy.errors import Cause, NodeFailed
from proxy.health.health import Health
from proxy.observing.node_states import STATES, NodeStates


def counted(health: Health) -> dict[tuple[str, str, str], float]:
    """Those that are not zero."""
    registry = CollectorRegistry()
    registry.register(NodeStates(health, "p_", clock=lambda: 1.0))
    (family,) = registry.collect()
    return {
        (one.labels["model"], one.labels["role"], one.labels["state"]): one.value
        for one in family.samples
        if one.value
    }


def said(
    role: Role,
    name: str,
    fingerprint: str = "f",
    state: State = State.READY,
    model: str = "m",
) -> Registration:
    return Registration(role, f"{name}:1", f"{name}:2", name, model, fingerprint, state=state)


def test_each_node_is_in_the_state_that_keeps_it_from_work() -> None:
    registry = Registry()
    for one in (
        said(Role.PREFILL, "p0"),
        said(Role.PREFILL, "p1", fingerprint="another"),
        said(Role.DECODE, "d0"),
        said(Role.DECODE, "d1", state=State.DRAINING),
        said(Role.DECODE, "d2"),
    ):
        registry.apply(one, now=0.5)
    health = Health(registry)
    broken = NodeFailed("d2", "it hung up", Cause.BROKEN)
    health.record_failure(broken, begun=0.5, now=0.9)
    assert counted(health) == {
        ("m", "prefill", "ready"): 1,
        ("m", "prefill", "misfit"): 1,
        ("m", "decode", "ready"): 1,
        ("m", "decode", "draining"): 1,
        ("m", "decode", "breaker_open"): 1,
    }


def test_a_role_that_a_model_has_no_node_of_is_a_zero_and_not_absent() -> None:
    registry = Registry()
    registry.apply(said(Role.PREFILL, "p0"), now=0.5)
    (family,) = NodeStates(Health(registry), "p_", clock=lambda: 1.0).collect()
    zeros = {one.labels["state"] for one in family.samples if one.labels["role"] == "decode"}
    assert zeros == {*STATES}


def test_models_are_in_the_order_of_their_names_whichever_came_first() -> None:
    registry, names = Registry(), [*"hbgdafce"]
    for name in names:
        registry.apply(said(Role.PREFILL, name, model=name), now=0.5)
    assert [model for model, _, _ in counted(Health(registry))] == sorted(names)
