"""Host and port in one string, such as `[::1]:8100` or `node:8100`."""

import re
from functools import lru_cache

from discovery.errors import MalformedAddress

HIGHEST_PORT = 65535
LONGEST_HOST = 253
MOST_KNOWN = 4096  # parsed addresses that are cached
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?\Z")  # a final dot: no search domains
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]\Z")


@lru_cache(maxsize=MOST_KNOWN)
def parse_address(text: str) -> tuple[str, int]:
    """Host, without brackets, and port; raises MalformedAddress."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port:
        raise MalformedAddress("Invalid instance format.")
    if not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= HIGHEST_PORT:
        raise MalformedAddress("Invalid port number.")
    if len(host) > LONGEST_HOST or not (_HOST.match(host) or _IPV6.match(host)):
        raise MalformedAddress("Invalid instance address.")
    return host.strip("[]"), int(port)


def format_address(host: str, port: int | str) -> str:
    """The inverse; only an IPv6 address gets brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
