"""The address under which other machines reach a node."""

import logging
import socket
from collections.abc import Sequence

from discovery.address import format_address, parse_address

log = logging.getLogger(__name__)
HERE = "127.0.0.1"


class UnreachableAddress(ValueError):
    """Others could not reach the node under the address it would give them."""


def advertised_host(bind_host: str, wanted: str | None, proxies: Sequence[str]) -> str:
    """The host to register: `wanted` if set, else our own address on the route to a proxy.

    A proxy on another machine is preferred to one on this, and one whose name cannot be
    resolved is skipped unless there is no other. Without a proxy, a node that listens at all
    addresses registers as 127.0.0.1.

    Raises UnreachableAddress where only this machine could use it and a proxy is elsewhere, and
    where no proxy's name is known. With `wanted` such names may be known later: pods that start
    together have no names yet.
    """
    try:
        outward = _outward([parse_address(proxy) for proxy in proxies])
    except UnreachableAddress as error:
        if wanted is None:
            raise
        log.warning("%s; it is tried again and again", error)
        return wanted
    host = wanted or ((outward or HERE) if _is_any(bind_host) else bind_host)
    if outward and _is_loopback(host) and not _is_loopback(outward):
        raise UnreachableAddress(
            f"a proxy elsewhere cannot reach {host}: set --host to {outward} or 0.0.0.0"
        )
    return host


def _outward(proxies: Sequence[tuple[str, int]]) -> str | None:
    """Our address on the route to the first proxy elsewhere, or else to the first one."""
    found, unknown = list[str](), list[OSError]()
    for proxy in proxies:
        try:
            found.append(_route_to(*proxy))
        except OSError as error:  # its name may be known later
            unknown.append(error)
    if unknown and not found:
        first = format_address(*proxies[0])
        raise UnreachableAddress(f"--proxy {first}: {unknown[0].strerror}") from unknown[0]
    return next((end for end in found if not _is_loopback(end)), found[0] if found else None)


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
