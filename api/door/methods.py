"""Requests with a method that HTTP does not have, or that has no meaning here. Pure."""

import re

import httptools

FIRST_LINE = re.compile(
    rb"(?P<method>[!#-'*+.^-z|~A-Z0-9-]{1,32}) (?P<url>[!-~]+) HTTP/1\.[01]\r?\n"
)
TUNNEL = b"CONNECT"  # which the parser knows, with a host for a path


def unknown_method(data: bytes) -> tuple[str, bytes] | None:
    """The method and URL of a request that the data begins with, if its method is unknown."""
    line = FIRST_LINE.match(data)
    if line is None or (line["method"] != TUNNEL and _is_known(line[0])):
        return None
    return line["method"].decode(), line["url"]


def _is_known(line: bytes) -> bool:
    try:
        httptools.HttpRequestParser(object()).feed_data(line)
    except httptools.HttpParserError:
        return False
    return True
