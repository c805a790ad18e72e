"""Turns errors of calls, and error replies, into NodeFailed with a Cause. Pure."""

import errno

import msgspec

from api.generator import BAD_REQUEST, LEAVING, UNAVAILABLE
from api.wire import UNREADABLE, WireError
from discovery.node import Node
from discovery.signed_calls import REFUSED
from proxy.errors import Cause, NodeFailed, ProxyExhausted
from proxy.nodes.connection_errors import NoConnection

SERVER_ERROR = 500
REQUEST_AT_FAULT = {BAD_REQUEST, 413, 422}  # other nodes would reject the request as well
UNAUTHORIZED = {401, 403}
LONGEST_LINE = 500
TOO_MANY = 429
OUT_OF_RESOURCES = {
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.ENOMEM,
    errno.EADDRNOTAVAIL,
}
CALL_ERRORS = (TimeoutError, OSError, WireError)


class _Detail(msgspec.Struct, frozen=True):
    message: str = ""
    param: str | None = None
    code: object = None


class _ErrorBody(msgspec.Struct, frozen=True):
    """vLLM's error body; ours has the same shape."""

    error: _Detail = _Detail()
    message: str = ""


def failure_of_error(node: Node, error: Exception) -> NodeFailed | ProxyExhausted:
    """The failure that one of CALL_ERRORS means; ProxyExhausted if the proxy is at fault."""
    inner = error.os_error if isinstance(error, NoConnection) else error
    if isinstance(inner, OSError) and inner.errno in OUT_OF_RESOURCES:
        return ProxyExhausted(f"the proxy cannot open a connection: {inner.strerror}")
    return NodeFailed(node.node_id, _reason(error), _cause(error))


def failure_of_status(node: Node, status: int, data: bytes) -> NodeFailed:
    """The failure that a status other than 200 means; a 400 goes on to the client."""
    try:
        body = msgspec.json.decode(data, type=_ErrorBody)
    except UNREADABLE:
        body = _ErrorBody()
    said = body.error.message or body.message
    if status in UNAUTHORIZED and node.ours:
        why = f"it does not let us in: {_line(said) or status}"
        return NodeFailed(node.node_id, why, Cause.SIGNATURE)
    if status in UNAUTHORIZED:
        said = f"it answered with status {status}: does --foreign-api-key have its key?"
    return NodeFailed(
        node.node_id,
        said or f"it answered with status {status}",
        _cause_of(status, body.error.code),
        retryable=status not in REQUEST_AT_FAULT,
        param=body.error.param,
    )


def signature_refusal(data: bytes) -> str | None:
    """Why a pdserve node rejected the proxy's signature; None: the body says something else."""
    try:
        error = msgspec.json.decode(data, type=_ErrorBody).error
    except UNREADABLE:
        return None
    return _line(error.message) if error.code == REFUSED else None


def _line(said: str) -> str:
    """A node's message as one short line, fit for the log."""
    said = said[:LONGEST_LINE]
    return said if said.isprintable() else repr(said)


def _cause_of(status: int, code: object) -> Cause:
    if status == UNAVAILABLE:
        return Cause.LEAVING if code == LEAVING else Cause.BUSY
    if status == TOO_MANY:
        return Cause.BUSY
    return Cause.NODE_ERROR if status >= SERVER_ERROR else Cause.REFUSED


def _cause(error: Exception) -> Cause:
    if isinstance(error, NoConnection):
        return Cause.UNREACHABLE
    return Cause.SILENT if isinstance(error, TimeoutError) else Cause.BROKEN


def _reason(error: Exception) -> str:
    if isinstance(error, NoConnection) and isinstance(error.os_error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "silent for too long"
    return str(error) or "connection lost"
