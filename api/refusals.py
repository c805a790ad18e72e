"""Refusals, and names of requests, as the clients of a path know them. Pure."""

from collections.abc import Mapping

import msgspec

from api.errors import ErrorBody
from api.messages.errors import error_of, is_of_messages

REQUEST_ID, THEIR_REQUEST_ID = "X-Request-Id", "request-id"


def refusal(path: str, status: int, error: ErrorBody, name: str | None) -> msgspec.Struct:
    """In Anthropic's form for messages, in OpenAI's for all else."""
    return error_of(status, error, name) if is_of_messages(path) else error


def names(path: str, name: str | None) -> Mapping[str, str]:
    """The headers that say which request was answered, where that is known."""
    if not name:
        return {}
    theirs = {THEIR_REQUEST_ID: name} if is_of_messages(path) else {}
    return {REQUEST_ID: name, **theirs}
