"""`pdserve status`: prints a proxy's /status as a table."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from deploy.config import StatusConfig
from deploy.proxy_calls import UNANSWERED, call, explain
from deploy.standard_files import say
from discovery.registration import Load, State

UNKNOWN, CLOSED = "-", "closed"
HEADINGS = (
    *("KIND", "ADDRESS", "STATE", "MODEL", "WAITING", "RUNNING", "KV BLOCKS", "HEARD"),
    *("FAILED", "NODE"),
)


class NodeStatus(msgspec.Struct, frozen=True):
    """One node, as the proxy knows it."""

    role: str
    http_address: str
    node_id: str | None
    model: str | None
    state: State
    load: Load
    heard_s_ago: float
    breaker: str
    failures: int
    misfit: str | None
    trouble: str | None = None
    fingerprint: str | None = None
    max_num_seqs: int | None = None


class ModelStatus(msgspec.Struct, frozen=True):
    """One model; `without_text`: why it answers only in token ids, for now or for good."""

    names: tuple[str, ...]
    without_text: str | None
    adapters: tuple[str, ...] = ()
    fingerprint: str | None = None


class ClusterStatus(msgspec.Struct, frozen=True):
    """The parts of the answer that are shown."""

    status: Literal["ok", "degraded", "unavailable"]
    requests_in_flight: int
    nodes: tuple[NodeStatus, ...]
    models: tuple[ModelStatus, ...] = ()
    requests_queued: int = 0


def run(config: StatusConfig) -> None:
    """Print the status; raises SystemExit with 1, or a reason, unless all is well."""
    try:
        body = call(config, "/status")
        cluster = msgspec.json.decode(body, type=ClusterStatus)
    except UNANSWERED as error:
        raise SystemExit(f"pdserve status: {config.url}: {explain(error, config)}") from error
    say(body.decode() + "\n" if config.json else render(cluster))
    if cluster.status != "ok":
        raise SystemExit(1)


def render(cluster: ClusterStatus) -> str:
    """One line for each node; below, why some get no work."""
    rows = [HEADINGS, *(_row(node) for node in cluster.nodes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{cluster.status}, {cluster.requests_in_flight} requests in flight",
        *(_aligned(row, widths) for row in rows),
        *(f"{node.http_address}: {why}" for node in cluster.nodes if (why := _why(node))),
        *(one.without_text for one in cluster.models if one.without_text),
        *(_adapters(one) for one in cluster.models if one.adapters),
        *_whole(cluster),
    ]
    return "".join(f"{line}\n" for line in lines)


def _adapters(model: ModelStatus) -> str:
    """While a model is upgraded there are two of one name."""
    model_name = f"{model.names[0]} ({model.fingerprint})"
    return f"{model_name} has the LoRA adapters {', '.join(model.adapters)}"


def _whole(cluster: ClusterStatus) -> Sequence[str]:
    """Why the cluster is not well; a new operator sees nodes that are."""
    if cluster.status == "degraded":
        return ("degraded: no prefill node that takes work fits a decode node",)
    if cluster.status == "unavailable":
        missing = "decode node takes work" if cluster.nodes else "node is known"
        return (f"unavailable: no {missing}",)
    return ()


def _row(node: NodeStatus) -> Sequence[str]:
    load, known = node.load, node.load.total_blocks > 0  # vLLM's nodes do not report it
    blocks = f"{load.total_blocks - load.free_blocks}/{load.total_blocks}"
    waiting, running = str(load.waiting), str(load.running)
    return (
        node.role,
        node.http_address,
        _state(node),
        node.model or UNKNOWN,
        *((waiting, running, blocks) if known else (UNKNOWN,) * 3),
        f"{node.heard_s_ago:.1f} s ago",
        str(node.failures),
        node.node_id or UNKNOWN,
    )


def _state(node: NodeStatus) -> str:
    """The node's state; what keeps it from work comes first."""
    if node.misfit:
        return "fits nobody"
    return node.state.value if node.breaker == CLOSED else f"breaker {node.breaker}"


def _why(node: NodeStatus) -> str | None:
    return node.misfit or node.trouble


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return "  ".join(cells).rstrip()
