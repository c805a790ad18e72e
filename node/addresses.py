"""The address under which other machines reach a node."""

import logging
import socket
from collections.abc import Sequence
from socket import AddressFamily

from discovery.address import format_address, parse_address

log = logging.getLogger(__name__)
HERE = {AddressFamily.AF_INET: "127.0.0.1", AddressFamily.AF_INET6: "::1"}


class UnreachableAddress(ValueError):
    """Others could not reach the node under the address it would give them."""


def advertised_host(bind_host: str, wanted: str | None, proxies: Sequence[str]) -> str:
    """The host to register: `wanted` if set, else our own address on the route to a proxy.

    A proxy on another machine is preferred to one on this, and one whose name cannot be
    resolved is skipped unless there is no other. Without a proxy, a node that listens at all
    addresses registers as 127.0.0.1. One that listens at all IPv4 addresses gives none of IPv6.

    Raises UnreachableAddress where only this machine could use it and a proxy is elsewhere, and
    where no proxy's name is known. With `wanted` such names may be known later: pods that start
    together have no names yet.
    """
    try:
        outward = _outward([parse_address(proxy) for proxy in proxies], _family(bind_host))
    except UnreachableAddress as error:
        if wanted is None:
            raise
        log.warning("%s; it is tried again and again", error)
        return wanted
    ours = _family(bind_host)
    host = wanted or (_own(bind_host, outward, ours) if _is_any(bind_host) else bind_host)
    if outward and _is_loopback(host) and not _is_loopback(outward):
        everywhere = "::" if ":" in outward else "0.0.0.0"
        raise UnreachableAddress(
            f"a proxy elsewhere cannot reach {host}: set --host to {outward} or {everywhere}"
        )
    return host


def _own(bind_host: str, outward: str | None, ours: AddressFamily) -> str:
    """Our address, of the family that we listen at; here, any loopback address will do."""
    if outward is None or (_is_loopback(outward) and _family(outward) is not ours):
        return HERE[ours]
    if _family(outward) is not ours:
        raise UnreachableAddress(
            f"--host {bind_host} does not listen at {outward}, our address on the route to a "
            f"proxy: set --host to that, or --advertise-host"
        )
    return outward


def _outward(proxies: Sequence[tuple[str, int]], ours: AddressFamily) -> str | None:
    """Our address on the route to the first proxy elsewhere, or else to the first one.

    One of the family that we listen at comes before others.
    """
    found, unknown = list[str](), list[OSError]()
    for proxy in proxies:
        try:
            found.append(_route_to(*proxy, ours))
        except OSError as error:  # its name may be known later
            unknown.append(error)
    if unknown and not found:
        first = format_address(*proxies[0])
        raise UnreachableAddress(f"--proxy {first}: {unknown[0].strerror}") from unknown[0]
    best = sorted(found, key=lambda end: (_is_loopback(end), _family(end) is not ours))
    return best[0] if best else None


def _route_to(host: str, port: int, ours: AddressFamily) -> str:
    """Our own address on the way there, of our family if there is one; nothing is sent."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    failed = OSError(f"{host} has no address")
    for family, kind, _, _, target in sorted(found, key=lambda one: one[0] is not ours):
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(target)
            except OSError as error:
                failed = error
            else:
                return str(probe.getsockname()[0])
    raise failed


def _family(host: str) -> AddressFamily:
    return AddressFamily.AF_INET6 if ":" in host else AddressFamily.AF_INET


def _is_any(host: str) -> bool:
    return host in ("0.0.0.0", "::", "")


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")
