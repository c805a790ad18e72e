"""Renders the cluster in the JSON formats of other routers' tools. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api.errors import BadRequest
from api.wire import UNREADABLE, explained
from proxy.nodes.instances import Instance, check_instance, with_facts

Node = Mapping[str, Any]
SCHEME = "http://"
PREFILL, DECODE = "prefill", "decode"
OK, UNAVAILABLE = 200, 503


class _WorkerSpec(msgspec.Struct, frozen=True):
    """The fields that are read of the body of SGLang's router; all others are ignored."""

    url: str
    worker_type: str | None = None
    bootstrap_port: int | None = None
    max_model_len: int | None = None


def read_worker(data: bytes) -> Instance:
    """The body of `POST /workers`; raises BadRequest."""
    try:
        spec = msgspec.json.decode(data, type=_WorkerSpec)
    except UNREADABLE as error:
        wrong = explained(error)
        raise BadRequest(str(wrong), wrong.param) from error
    address = spec.url.removeprefix(SCHEME).rstrip("/")
    instance = check_instance(spec.worker_type, address, ("worker_type", "url"))
    return with_facts(instance, spec.bootstrap_port, spec.max_model_len)


def worker(node: Node) -> dict[str, Any]:
    """One entry of `GET /workers`."""
    return {
        "id": node["node_id"] or node["http_address"],
        "url": SCHEME + node["http_address"],
        "model_id": node["model"] or "unknown",
        "priority": 50,
        "cost": 1.0,
        "worker_type": node["role"],
        "is_healthy": _takes_work(node),
        "load": _load(node),
        "connection_mode": "http",
        "runtime_type": "external" if node["node_id"] else "vllm",
        "disable_health_check": False,
        "metadata": {"state": node["state"]},
    }


def workers(nodes: Sequence[Node]) -> dict[str, Any]:
    """`GET /workers`; every node is one of the two kinds, none is regular."""
    counts = {role: sum(node["role"] == role for node in nodes) for role in (PREFILL, DECODE)}
    stats = {f"{role}_count": count for role, count in counts.items()}
    return {
        "workers": [worker(node) for node in nodes],
        "total": len(nodes),
        "stats": {**stats, "regular_count": 0},
    }


def loads(nodes: Sequence[Node]) -> dict[str, Any]:
    """`GET /get_loads`: running and waiting requests of each node; -1 for vLLM's."""
    told = [
        {
            "worker": SCHEME + node["http_address"],
            "worker_type": node["role"],
            "load": _load(node) if node["node_id"] else -1,
        }
        for node in nodes
    ]
    known = sum(one["load"] >= 0 for one in told)
    total = len(told)
    return {
        "workers": told,
        "total_workers": total,
        "successful": known,
        "failed": total - known,
    }


def scrape_targets(nodes: Sequence[Node]) -> list[dict[str, Any]]:
    """`GET /metrics/targets`: every node, as Prometheus' HTTP service discovery has it."""
    return [
        {
            "targets": [node["http_address"]],
            "labels": {"role": node["role"], "model": node["model"] or ""},
        }
        for node in nodes
    ]


def readiness(status: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """`GET /readiness`: 503 while no request could be answered."""
    nodes: Sequence[Node] = status["nodes"]
    ready = status["status"] != "unavailable"
    return OK if ready else UNAVAILABLE, {
        "status": "ready" if ready else "not ready",
        "healthy_workers": sum(map(_takes_work, nodes)),
        "total_workers": len(nodes),
    }


def healthcheck(status: Mapping[str, Any]) -> dict[str, Any]:
    """`GET /healthcheck`, as in vLLM's proxies for NIXL: that this process answers."""
    return {
        "status": "ok",
        "prefill_instances": status["prefill_node_count"],
        "decode_instances": status["decode_node_count"],
    }


def _takes_work(node: Node) -> bool:
    return bool(node["state"] == "ready" and node["breaker"] == "closed" and node["fits"])


def _load(node: Node) -> int:
    load: Mapping[str, int] = node["load"]
    return load.get("waiting", 0) + load.get("running", 0)
