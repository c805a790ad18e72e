"""Status, metrics and timelines of the whole proxy: merged over all workers.

Whichever worker a request reaches, it asks the others and merges their answers with its own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.workers.api import METRICS, STATUS, TIMELINE, PeerWorkers
from proxy.workers.metrics_pages import merge_metrics

BREAKERS = ("closed", "half_open", "open")  # from best to worst
Json = dict[str, Any]


@dataclass(slots=True)
class ClusterReports:
    """Call `serve_status` and `serve_timelines` first: they set what this worker reports."""

    peers: PeerWorkers
    _status: Callable[[], Json] = dict
    _metrics: Callable[[], bytes] = bytes
    _timeline: Callable[[str, str | None], Json | None] = lambda _name, _owner: None

    def serve_status(self, status: Callable[[], Json], metrics: Callable[[], bytes]) -> None:
        """Use this worker's status and metrics, for clients and for the other workers."""
        self._status, self._metrics = status, metrics
        self.peers.query_handlers[STATUS] = lambda _: msgspec.json.encode(status())
        self.peers.query_handlers[METRICS] = lambda _: metrics()

    def serve_timelines(self, find: Callable[[str, str | None], Json | None]) -> None:
        """Use this worker's timelines, which `find` looks up by request id and owner."""

        def answer(subject: str) -> bytes | None:
            found = find(*msgspec.json.decode(subject, type=tuple[str, str | None]))
            return msgspec.json.encode(found) if found else None

        self._timeline = find
        self.peers.query_handlers[TIMELINE] = answer

    async def timeline(self, name: str, owner: str | None) -> Json | None:
        """The timeline of a request that any worker has served; None: no worker knows it."""
        if found := self._timeline(name, owner):
            return found
        subject = msgspec.json.encode((name, owner)).decode()
        for body in await self.peers.ask(TIMELINE, subject):
            found = msgspec.json.decode(body)
        return found

    async def status(self) -> Json:
        """The cluster's status, merged over all workers."""
        others = await self.peers.ask(STATUS)
        return merge_status(self._status(), map(msgspec.json.decode, others))

    async def metrics(self) -> bytes:
        """The metrics page, merged over all workers."""
        others: Sequence[bytes] = await self.peers.ask(METRICS)
        return merge_metrics([self._metrics(), *others]) if others else self._metrics()


def merge_status(own: Json, others: Iterable[Json]) -> Json:
    """The nodes as `own` sees them, with the failures and requests of all workers added up.

    Of a node's or a pair's breakers the worst state counts.
    """
    nodes = {node["http_address"]: node for node in own["nodes"]}
    pairs = {_pair_ids(pair): pair for pair in own["pairs"]}
    for other in others:
        for name in ("requests_in_flight", "requests_queued"):
            own[name] += other[name]
        for theirs in other["nodes"]:
            if node := nodes.get(theirs["http_address"]):
                node["failures"] += theirs["failures"]
                _take_worse_breaker(node, theirs)
                node["trouble"] = node["trouble"] or theirs["trouble"]
        for theirs in other["pairs"]:
            _take_worse_breaker(pairs.setdefault(_pair_ids(theirs), theirs), theirs)
    own["pairs"] = list(pairs.values())
    return own


def _take_worse_breaker(one: Json, other: Json) -> None:
    one["breaker"] = max(one["breaker"], other["breaker"], key=BREAKERS.index)


def _pair_ids(pair: Json) -> tuple[str, str]:
    return pair["prefill_node_id"], pair["decode_node_id"]
