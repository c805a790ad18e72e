"""The cluster in JSON: for people, for load balancers, and for vLLM's scripts. Pure."""

from typing import Any

from discovery.registration import Role, to_map
from discovery.registry import Node, Registry

OK, UNAVAILABLE = 200, 503


def health(
    registry: Registry, *, now: float, generates: bool = True
) -> tuple[int, dict[str, Any]]:
    """Whether a request could be answered, and by how many; `degraded` when by one kind.

    A model that does not generate wants prefill nodes; others can stand in for them.
    """
    counts = {role: len(_takes_work(registry, role, now)) for role in Role}
    prefill, decode = counts[Role.PREFILL], counts[Role.DECODE]
    best, needed = (decode and prefill, decode) if generates else (prefill, prefill + decode)
    status = "ok" if best else "degraded" if needed else "unavailable"
    body = {"status": status, "prefill_nodes": prefill, "decode_nodes": decode}
    return OK if needed else UNAVAILABLE, body


def cluster_status(
    registry: Registry, *, now: float, in_flight: int, generates: bool = True
) -> dict[str, Any]:
    """Everybody who is known; vLLM's four keys first."""
    nodes = registry.all()
    addresses = {
        role: [node.registration.http_address for node in nodes if node.role is role]
        for role in Role
    }
    return {
        "prefill_node_count": len(addresses[Role.PREFILL]),
        "decode_node_count": len(addresses[Role.DECODE]),
        "prefill_nodes": addresses[Role.PREFILL],
        "decode_nodes": addresses[Role.DECODE],
        "status": health(registry, now=now, generates=generates)[1]["status"],
        "requests_in_flight": in_flight,
        "nodes": [_describe(node, registry, now) for node in nodes],
    }


def shortest_context(registry: Registry, *, now: float) -> int | None:
    """What every decode node that may get a request has room for; None while nobody says.

    Those without a partner get none while others have one. Where there is no decode node,
    prefill nodes still pool.
    """
    nodes = _takes_work(registry, Role.DECODE, now) or _takes_work(registry, Role.PREFILL, now)
    paired = [node for node in nodes if registry.has_partner(node, now=now)]
    lengths = [node.registration.max_model_len for node in paired or nodes]
    return min((length for length in lengths if length is not None), default=None)


def _takes_work(registry: Registry, role: Role, now: float) -> tuple[Node, ...]:
    well = registry.nodes(role, now=now)
    return well or registry.nodes(role, now=now, suspect=True)


def _describe(node: Node, registry: Registry, now: float) -> dict[str, Any]:
    said, misfit = node.registration, registry.misfit(node)
    return {
        "role": said.type.name.lower(),
        "http_address": said.http_address,
        "zmq_address": said.zmq_address,
        "node_id": said.node_id,
        "model": said.model,
        "fingerprint": said.fingerprint,
        "max_model_len": said.max_model_len,
        "state": said.state.value,
        "load": to_map(said).get("load", {}),
        "heard_s_ago": round(now - node.heard_at, 3),
        "suspect": node.suspect,
        "static": node.static,
        "failures": registry.failures[said.http_address],
        "fits": misfit is None,
        "misfit": misfit,
    }
