"""Why the text surface turns a request down, and the body that says so.

ApiError
├── BadRequest      400  the request is at fault; `param` is the field
│   └── ContextTooLong   prompt and answer do not fit the model's context
├── ModelNotFound   404  a name that is not served here
├── ResponseNotStored     404  an earlier response is asked for: none is stored
├── EndpointNotOffered    404  an endpoint of OpenAI's that is not implemented
├── UnsupportedMediaType  415  a body of another type than JSON
├── NoTokenizer     501  text is asked of a server without a tokenizer
└── TooBusy         503  the server cannot parse the request now; retry later
"""

from collections.abc import Mapping

import msgspec

from api.generator import BAD_REQUEST, StreamFailed
from api.wire import shortened

SERVER_ERROR = 500
LONGEST_MESSAGE, LONGEST_PARAM = 2000, 200
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """Base of this package's errors; it has what OpenAI's error body needs."""

    status = BAD_REQUEST
    code: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BadRequest(ApiError):
    """The request itself is invalid."""


class ContextTooLong(BadRequest):
    """The prompt, or prompt and answer together, are longer than the model's context.

    If that is known, it has the length of the `prompt` alone and that of the `context`, in
    tokens.
    """

    code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        prompt: int | None = None,
        context: int | None = None,
    ) -> None:
        super().__init__(message, param)
        self.prompt, self.context = prompt, context


class ModelNotFound(ApiError):
    """The request names a model that is not served here."""

    status = 404
    code = "model_not_found"


class ResponseNotStored(ApiError):
    """The request refers to an earlier response: none is stored."""

    status = 404


class EndpointNotOffered(ApiError):
    """The path is an endpoint of OpenAI's that is not implemented here."""

    status = 404


class UnsupportedMediaType(ApiError):
    """The Content-Type says that the body is not JSON."""

    status = 415


class NoTokenizer(ApiError):
    """The request has text, and the server has no tokenizer."""

    status = 501


class TooBusy(ApiError):
    """The server cannot parse the request now; the client may retry."""

    status = 503
    retry_after_s = 1


class ErrorDetail(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error, in an answer or in a stream."""

    error: ErrorDetail


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> ErrorBody:
    """The error body of a status; long texts, which may come from the client, are shortened."""
    param = None if param is None else shortened(param, LONGEST_PARAM)
    message = shortened(message, LONGEST_MESSAGE)
    return ErrorBody(ErrorDetail(message, _type_of(status), param, code))


def body_of(error: ApiError | StreamFailed) -> ErrorBody:
    """The error body of an exception."""
    return error_body(error.status, str(error), error.param, error.code)


def _type_of(status: int) -> str:
    fallback = "server_error" if status >= SERVER_ERROR else "invalid_request_error"
    return TYPES.get(status, fallback)
