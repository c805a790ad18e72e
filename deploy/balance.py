"""`pdserve balance`: changes the roles of nodes as load needs it, by a proxy's admin calls."""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from urllib.error import HTTPError

import msgspec

from deploy.config import BalanceConfig
from deploy.load_window import LoadWindow, NodeLoad, RoleChange
from deploy.proxy_calls import UNANSWERED, call, explain
from deploy.status import CLOSED, ClusterStatus, NodeStatus
from discovery.kinds import Model
from discovery.logs import start_logging
from discovery.registration import Role, State

UNAUTHORIZED = 401
logger = logging.getLogger(__name__)


def run(config: BalanceConfig) -> None:
    """Look and change until stopped; raises SystemExit if the first look fails."""
    start_logging("info", lossy=False)
    if config.admin_api_key is None and not config.dry_run:
        raise SystemExit("pdserve balance: changes need --admin-api-key, or say --dry-run")
    balancer = Balancer(config)
    try:
        if not config.dry_run:
            call(config, "/instances")  # a key that is no admin's is told now, not at a change
        nodes = balancer.look().nodes
    except UNANSWERED as error:
        why = explain(error, config)
        raise SystemExit(f"pdserve balance: {config.url}: {why}") from error
    logger.info("ready: watching %s nodes of %s", len(nodes), config.url)
    while True:
        balancer.step()
        time.sleep(config.interval_s)


@dataclass(slots=True)
class Balancer:
    """One window for each model that the proxy's nodes have."""

    config: BalanceConfig
    clock: Callable[[], float] = time.monotonic
    _windows: dict[Model, LoadWindow] = field(default_factory=dict)
    _lost: bool = False
    _admin_looks: bool = False

    def look(self) -> ClusterStatus:
        """The proxy's status; raises UNANSWERED. With the admin's key only if it takes that:
        the proxy logs each use.
        """
        least = self.config if self._admin_looks else replace(self.config, admin_api_key=None)
        try:
            status = call(least, "/status")
        except HTTPError as error:
            if error.code != UNAUTHORIZED or least.admin_api_key == self.config.admin_api_key:
                raise
            self._admin_looks = True
            return self.look()
        return msgspec.json.decode(status, type=ClusterStatus)

    def step(self) -> None:
        """Look once, and change what is due; a proxy that does not answer is asked again."""
        try:
            cluster = self.look()
        except UNANSWERED as error:
            if not self._lost:
                logger.warning("%s: %s", self.config.url, explain(error, self.config))
            self._lost = True
            self._windows.clear()  # what waited before says little
            return
        if self._lost:
            logger.info("%s answers again", self.config.url)
        self._lost = False
        for change in self._changes(cluster):
            self._order(change)

    def _changes(self, cluster: ClusterStatus) -> Iterator[RoleChange]:
        by_model = defaultdict[Model, list[NodeLoad]](list)
        for node in cluster.nodes:
            if node.node_id is not None:  # vLLM's nodes have no role of their own
                by_model[node.model, node.fingerprint].append(_load(node))
        # with several models it is not known what waits at the proxy for which of them
        queued = cluster.requests_queued if len(by_model) == 1 else 0
        for model, nodes in by_model.items():
            window = self._windows.setdefault(model, self._window())
            if change := window.observe(nodes, queued, now=self.clock()):
                yield change

    def _window(self) -> LoadWindow:
        least = {Role.PREFILL: self.config.min_prefill, Role.DECODE: self.config.min_decode}
        return LoadWindow(self.config.window_s, least)

    def _order(self, change: RoleChange) -> None:
        address, role, why = change
        kind = role.name.lower()
        if self.config.dry_run:
            logger.info("%s should become a %s node: %s", address, kind, why)
            return
        try:
            order = msgspec.json.encode({"role": kind})
            call(self.config, f"/instances/{address}/role", order)
        except UNANSWERED as error:
            told = explain(error, self.config)
            logger.warning("%s does not become a %s node: %s", address, kind, told)
        else:
            logger.info("%s becomes a %s node: %s", address, kind, why)


def _load(node: NodeStatus) -> NodeLoad:
    load = node.load
    takes_work = node.state is State.READY and node.breaker == CLOSED and node.misfit is None
    return NodeLoad(
        node.http_address,
        Role[node.role.upper()],
        takes_work,
        load.waiting,
        load.running,
        float(load.waiting + load.running > 0),
        load.total_blocks - load.free_blocks,
        load.total_blocks,
        node.max_num_seqs,
    )
