"""How vLLM nodes hand KV over, and what was found out about each of them. Pure.

pull        the prefill leg's answer has the ticket, and decode fetches (NixlConnector)
push        once an answer said `transfer_mode: push`, its prefill node's coordinates are known.
            From then on decode is called at the same time, and found by the legs' common id
            (NixlPushConnector)
Mooncake    the same from the first call on: the prefill node's bootstrap server lists its
            engines, and a `transfer_id` of ours connects the legs (MooncakeConnector)

Facts are kept by address, and dropped when a failed call suggests that they are outdated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from api.generator import Leg
from api.wire import UNREADABLE, WireError
from discovery.address import format_address, parse_address
from discovery.node import Node
from kv_transfer.ticket import HOLD, KvTicket, to_params
from proxy.foreign.bodies import Params

MOST_KNOWN = 4096
FRESH_S = 10.0  # a prefill node that restarts has new engines
PUSH = "push"
PULL = {
    **HOLD,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
"""What asks vLLM's NIXL connectors for a ticket, in the words of vLLM's own proxies."""
COORDINATES = ("remote_engine_id", "remote_host", "remote_port", "tp_size", "pp_size")
RANK = "X-data-parallel-rank"
Value = TypeVar("Value")


class _Engine(msgspec.Struct, frozen=True):
    engine_id: str


@dataclass(frozen=True, slots=True)
class LegHandOver:
    """KV transfer parameters of one leg; `ticket`: the decode leg can start with it at once."""

    params: Params | None = None
    ticket: KvTicket | None = None
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class VllmNodes:
    """What this process has found out about vLLM nodes."""

    _without_generate: dict[str, bool] = field(default_factory=dict)
    _pushing: dict[str, Params] = field(default_factory=dict)
    _engines: dict[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    _asked_at: dict[str, float] = field(default_factory=dict)
    _turn: int = 0

    def generates(self, node: Node) -> bool:
        """Whether the node may have the endpoint for token ids."""
        return node.address not in self._without_generate

    def lacks_generate(self, node: Node) -> None:
        """Record that the node has no endpoint for token ids."""
        _keep(self._without_generate, node.address, True)

    def bootstrap(self, node: Node, now: float) -> str | None:
        """The bootstrap server to ask for the node's engines; None: they are known."""
        port = node.registration.bootstrap_port
        asked_at = self._asked_at.get(node.address)
        if port is None or (asked_at is not None and now - asked_at < FRESH_S):
            return None
        host, _ = parse_address(node.address)
        return format_address(host, port)

    def learn_engines(self, node: Node, data: bytes, now: float) -> None:
        """Read the bootstrap server's answer: an engine for each data-parallel rank."""
        try:
            said = msgspec.json.decode(data, type=dict[str, _Engine])
        except UNREADABLE as error:
            raise WireError(f"its bootstrap server: {error}") from error
        if not said or not all(rank.isascii() and rank.isdigit() for rank in said):
            raise WireError("its bootstrap server knows no engines")
        engines = [(rank, engine.engine_id) for rank, engine in sorted(said.items())]
        _keep(self._engines, node.address, engines)
        _keep(self._asked_at, node.address, now)

    def hand_over(self, node: Node, leg: Leg, outer_id: str) -> LegHandOver:
        """The KV transfer parameters of this leg; for Mooncake its engines must be known."""
        if not leg.hold:
            return LegHandOver(to_params(leg.ticket) if leg.ticket else None)
        if node.registration.bootstrap_port is not None:
            return self._mooncake(node, outer_id)
        known = self._pushing.get(node.address)
        return LegHandOver(PULL, _pushed(known, outer_id) if known else None)

    def learn_ticket(self, node: Node, manner: LegHandOver, ticket: KvTicket) -> bool:
        """Learn from a prefill leg's ticket; False: the decode leg got other coordinates."""
        said = ticket.verbatim or {}
        where = {key: said[key] for key in COORDINATES if said.get(key) is not None}
        address = node.address
        self._pushing.pop(address, None)
        if said.get("transfer_mode") == PUSH:
            _keep(self._pushing, address, where)
        sent = (manner.ticket.verbatim or {}) if manner.ticket else where
        return all(sent.get(key) == value for key, value in where.items())

    def doubt(self, node: Node) -> None:
        """Forget what may be outdated: a call failed, so the node may have restarted."""
        self._pushing.pop(node.address, None)
        self._asked_at.pop(node.address, None)

    def doubt_engine(self, engine_id: str | None) -> None:
        """Forget this engine's node: a decode node could not fetch from it."""
        for address, where in list(self._pushing.items()):
            if where.get("remote_engine_id") == engine_id:
                del self._pushing[address]
        for address, engines in self._engines.items():
            if any(one == engine_id for _, one in engines):
                self._asked_at.pop(address, None)

    def retry_generate(self, node: Node) -> None:
        """The node seems to have neither endpoint: it may have restarted, so try both again."""
        self._without_generate.pop(node.address, None)

    def _mooncake(self, node: Node, outer_id: str) -> LegHandOver:
        address = node.address
        engines = self._engines[address]
        self._turn += 1
        rank, engine_id = engines[self._turn % len(engines)]
        host, _ = parse_address(address)
        port = node.registration.bootstrap_port or 0
        name = f"xfer-{outer_id}"
        decode: dict[str, Any] = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "remote_bootstrap_addr": f"http://{format_address(host, port)}",
            "remote_engine_id": engine_id,
            "transfer_id": name,
        }
        ticket = KvTicket(name, engine_id, host, port, None, verbatim=decode)
        return LegHandOver({**HOLD, "transfer_id": name}, ticket, ((RANK, rank),))


def _pushed(where: Params, outer_id: str) -> KvTicket:
    decode = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        **where,
        "remote_request_id": outer_id,
    }
    engine_id, host = str(where["remote_engine_id"]), str(where["remote_host"])
    return KvTicket(outer_id, engine_id, host, 0, None, verbatim=decode)


def _keep(entries: dict[str, Value], address: str, value: Value) -> None:
    """Add as the latest entry; beyond `MOST_KNOWN` the oldest are dropped."""
    entries.pop(address, None)
    entries[address] = value
    while len(entries) > MOST_KNOWN:
        del entries[next(iter(entries))]
