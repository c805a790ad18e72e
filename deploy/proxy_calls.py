"""Calls of an operator's commands to a proxy: its status, and orders to its nodes."""

import ssl
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import msgspec

from deploy.config import ProxyAccess
from proxy.admin.certificate import load_pair

ANSWER_S = 5.0
CLIENTS, ADMINS = "--api-key", "--admin-api-key"
OUR_FLAGS = "--client-cert", "--client-key"
UNANSWERED = OSError, HTTPException, ValueError
"""What `call` raises; ValueError also if the answer cannot be decoded."""


def call(config: ProxyAccess, path: str, body: bytes | None = None) -> bytes:
    """The answer to a GET, or to a POST of a JSON body; raises UNANSWERED.

    Raises SystemExit for a certificate that cannot be read.
    """
    request = Request(config.url.rstrip("/") + path, body)
    if body is not None:
        request.add_header("Content-Type", "application/json")
    if key := _keys(config)[CLIENTS]:
        request.add_header("Authorization", f"Bearer {key}")
    if key := _keys(config)[ADMINS]:
        request.add_header("X-API-Key", key)
    ours = HTTPSHandler(context=_tls_context(config))
    direct = build_opener(ProxyHandler({}), ours)  # without any HTTP proxy
    with direct.open(request, timeout=ANSWER_S) as answer:
        return bytes(answer.read())


def _tls_context(config: ProxyAccess) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if config.client_cert is not None:
        try:
            load_pair(context, config.client_cert, config.client_key, OUR_FLAGS)
        except OSError as error:
            raise SystemExit(f"pdserve: {error}") from error
    return context


def explain(error: Exception, config: ProxyAccess) -> str:
    """Why there is no answer, in one line, and what to do about it, if that is known."""
    reason = " ".join(str(_reason(error)).split())
    return reason + _hint(reason, config)


class _Refusal(msgspec.Struct):
    message: str


class _Refused(msgspec.Struct):
    error: _Refusal


def _reason(error: Exception) -> object:
    """What the proxy says, or the reason without what urllib wraps around it."""
    if isinstance(error, HTTPError):
        with suppress(OSError, HTTPException, msgspec.DecodeError):
            said = msgspec.json.decode(error.read(), type=_Refused).error.message
            return f"{error}: {said}"
    return error.reason if type(error) is URLError else error


def _hint(reason: str, config: ProxyAccess) -> str:
    """What to do about it, if that is known."""
    given = [name for name, key in _keys(config).items() if key]
    key = " or ".join(f"another {flag}" for flag in given) or "--api-key or --admin-api-key"
    if given == [CLIENTS]:
        key += ": it has to be a client's; an admin's goes with --admin-api-key"
    plain = config.url.lower().startswith("http://")
    shown = "another --client-cert" if config.client_cert else "--client-cert"
    known = {
        "HTTP Error 401": key,
        "unable to get local issuer": "SSL_CERT_FILE",
        "self-signed certificate": "SSL_CERT_FILE",
        "closed connection without response": "https://" if plain else shown,
        "WRONG_VERSION_NUMBER": "http://",
        "There is no GET /status here": "the proxy's address: this may be a node's",
        "certificate required": shown,
        "unknown ca": shown,
    }
    return next((f" (try {way})" for sign, way in known.items() if sign in reason), "")


def _keys(config: ProxyAccess) -> Mapping[str, str | None]:
    """The keys by their flags; a proxy accepts either."""
    return {CLIENTS: next(iter(config.api_key), None), ADMINS: config.admin_api_key}
