"""Error bodies and request-id headers, in the format that a path's clients expect. Pure."""

from collections.abc import Mapping

import msgspec

from api.errors import ErrorBody
from api.messages.errors import error_of, is_of_messages
from api.models import is_of_models

REQUEST_ID, THEIR_REQUEST_ID = "X-Request-Id", "request-id"
VERSION = "anthropic-version"
"""The header of Anthropic's API that identifies its clients on paths that OpenAI has too."""


def wants_anthropic_format(path: str, version: str | None) -> bool:
    """Whether the answer has Anthropic's form: always for messages, and for models if the
    request has a `version` header.
    """
    return is_of_messages(path) or (version is not None and is_of_models(path))


def error_response(
    path: str, status: int, error: ErrorBody, name: str | None, version: str | None = None
) -> msgspec.Struct:
    """The error body: in Anthropic's format for its clients, in OpenAI's for all others."""
    return error_of(status, error, name) if wants_anthropic_format(path, version) else error


def request_id_headers(path: str, name: str | None) -> Mapping[str, str]:
    """The headers with the request's id, if it is known."""
    if not name:
        return {}
    theirs = {THEIR_REQUEST_ID: name} if is_of_messages(path) else {}
    return {REQUEST_ID: name, **theirs}
