"""Takes a few of many nodes: a decision costs the same among a thousand as among ten."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from operator import attrgetter
from random import Random

from discovery.node import Node

MAX_CANDIDATES = 6


def sample_nodes(
    nodes: Sequence[Node], wanted: Iterable[str], chance: Random, most: int = MAX_CANDIDATES
) -> Sequence[Node]:
    """Nodes with a `wanted` id, and up to `most` others that are drawn; or all nodes.

    `nodes` are sorted by id.
    """
    if len(nodes) <= most:
        return nodes
    found = [node for one in wanted if (node := _find(nodes, one))]
    start, step = chance.random(), len(nodes) / most
    for number in range(most):  # evenly spaced from a random start: no two are the same
        node = nodes[int((start + number) * step)]
        if node not in found:
            found.append(node)
    return found


def _find(nodes: Sequence[Node], node_id: str) -> Node | None:
    at = bisect_left(nodes, node_id, key=attrgetter("node_id"))
    return nodes[at] if at < len(nodes) and nodes[at].node_id == node_id else None
