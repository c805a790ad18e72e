"""Error bodies of the messages endpoints, wherever the error is raised. Pure."""

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from api.errors import SERVER_ERROR, ErrorBody

PATH = "/v1/messages"
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class MessagesErrorCode(msgspec.Struct, frozen=True):
    """The reason in machine-readable form."""

    error_code: str


class MessagesErrorDetail(msgspec.Struct, frozen=True):
    """Anthropic's error object."""

    type: str
    message: str
    details: MessagesErrorCode | UnsetType = UNSET


class MessagesError(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    """The body of an error, or the last event of a stream."""

    error: MessagesErrorDetail
    request_id: str | None


def is_of_messages(path: str) -> bool:
    """Whether a path belongs to the messages endpoints, even if nothing is served there."""
    return path == PATH or path.startswith(f"{PATH}/")


def error_of(status: int, error: ErrorBody, request_id: str | None) -> MessagesError:
    """An error body in Anthropic's format."""
    other = "api_error" if status >= SERVER_ERROR else "invalid_request_error"
    said, kind = error.error, TYPES.get(status, other)
    details = UNSET if said.code is None else MessagesErrorCode(said.code)
    return MessagesError(MessagesErrorDetail(kind, said.message, details), request_id)
