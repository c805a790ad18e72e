"""Where a node can be reached, and what other people's request ids say of the two nodes."""

import re
import socket
from collections.abc import Iterable

from api.generator import WHOLE, Leg
from discovery.address import parse_address
from discovery.errors import MalformedAddress
from kv_transfer.ticket import KvTicket

XPYD = re.compile(r"___prefill_addr_(?P<prefill>.+?)___decode_addr_(?P<decode>.+)_[^_]+$")
"""The request id that vLLM's XpYd proxy gives both of its legs."""


class UnreachableAddress(ValueError):
    """Others could not reach the node under the address it would give them."""


def advertised_host(bind_host: str, wanted: str | None, proxies: Iterable[str]) -> str:
    """What others call this machine: as told, or our end of the way to the first proxy.

    Raises UnreachableAddress where only this machine could use it and the proxy is elsewhere.
    """
    outward = next((_route_to(*parse_address(proxy)) for proxy in proxies), None)
    host = wanted or (outward if outward and _is_any(bind_host) else bind_host)
    if outward and _is_loopback(host) and not _is_loopback(outward):
        raise UnreachableAddress(
            f"a proxy elsewhere cannot reach {host}: set --host to {outward} or 0.0.0.0"
        )
    return host


def leg_by_request_id(outer_id: str, index: int, zmq_address: str) -> Leg:
    """The part that vLLM's XpYd proxy means this node to do; WHOLE for any other id.

    Prefill offers under the id, decode asks the prefill node for it; `index` tells the
    choices of one request apart.
    """
    found = XPYD.search(outer_id)
    if not found or found["prefill"] == found["decode"]:
        return WHOLE
    shared = f"{outer_id}#{index}"
    if found["prefill"] == zmq_address:
        return Leg(hold=True, outer_id=shared)
    if found["decode"] != zmq_address:
        return WHOLE
    try:
        host, port = parse_address(found["prefill"])
    except MalformedAddress:
        return WHOLE
    return Leg(ticket=KvTicket(shared, None, host, port, None))


def _route_to(host: str, port: int) -> str:
    """Our own address on the way there; nothing is sent."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])


def _is_any(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")
