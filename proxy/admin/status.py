"""Renders /status and /health, also for vLLM's scripts. Pure."""

from collections.abc import Sequence
from typing import Any

from api.served import ServedModel
from discovery.node import Node
from discovery.registration import Role, to_map
from discovery.registry import Registry
from proxy.health.breaker import BreakerState
from proxy.health.health import Health, Pair

OK, UNAVAILABLE = 200, 503


def health(
    registry: Registry, *, now: float, generates: bool = True
) -> tuple[int, dict[str, Any]]:
    """Whether a request could be answered, and by how many nodes; `degraded`: by one role only.

    Prefill nodes that fit no decode node are counted, but do not make the cluster `ok`. A model
    that does not generate needs prefill nodes; decode nodes can stand in for them.
    """
    counts = {role: len(registry.nodes(role, now=now)) for role in Role}
    prefill, decode = counts[Role.PREFILL], counts[Role.DECODE]
    best: object = registry.paired(Role.PREFILL, now=now) if generates else prefill
    needed = decode if generates else prefill + decode
    status = "ok" if best else "degraded" if needed else "unavailable"
    body = {"status": status, "prefill_nodes": prefill, "decode_nodes": decode}
    return OK if needed else UNAVAILABLE, body


def cluster_status(
    registry: Registry, breakers: Health, *, now: float, in_flight: int, generates: bool = True
) -> dict[str, Any]:
    """All known nodes; vLLM's four keys come first."""
    nodes = registry.all()
    addresses = {role: [node.address for node in nodes if node.role is role] for role in Role}
    return {
        "prefill_node_count": len(addresses[Role.PREFILL]),
        "decode_node_count": len(addresses[Role.DECODE]),
        "prefill_nodes": addresses[Role.PREFILL],
        "decode_nodes": addresses[Role.DECODE],
        "status": health(registry, now=now, generates=generates)[1]["status"],
        "requests_in_flight": in_flight,
        "pairs": [_between(pair, state) for pair, state in breakers.unhealthy_pairs(now=now)],
        "nodes": [_describe(node, registry, breakers, now) for node in nodes],
    }


def served_models(models: Sequence[ServedModel]) -> list[dict[str, Any]]:
    """The models and their names, and whether text can be sent to each yet."""
    return [
        {
            "names": list(one.names),
            "adapters": list(one.adapters),
            "model": one.root,
            "fingerprint": one.key and one.key[1],
            "max_model_len": one.max_model_len(),
            "text": "ready" if one.codec else "loading" if one.pending else "none",
            "without_text": None if one.codec else one.no_text,
        }
        for one in models
    ]


def _between(pair: Pair, state: BreakerState) -> dict[str, Any]:
    """Two nodes between which KV was lost."""
    return {"prefill_node_id": pair[0], "decode_node_id": pair[1], "breaker": state.value}


def _describe(node: Node, registry: Registry, breakers: Health, now: float) -> dict[str, Any]:
    said, misfit = node.registration, registry.misfit(node)
    return {
        "role": said.type.name.lower(),
        "http_address": said.http_address,
        "zmq_address": said.zmq_address,
        "node_id": said.node_id,
        "model": said.model,
        "adapters": list(said.adapters),
        "fingerprint": said.fingerprint,
        "max_model_len": said.max_model_len,
        "max_num_seqs": said.max_num_seqs,
        "state": said.state.value,
        "load": to_map(said).get("load", {}),
        "heard_s_ago": round(now - node.heard_at, 3),
        "breaker": breakers.state(node, now=now).value,
        "trouble": breakers.breaker_reason(node, now=now),
        "static": node.static,
        "failures": breakers.failures[said.http_address],
        "fits": misfit is None,
        "misfit": misfit,
    }
