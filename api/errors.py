"""Why the text surface turns a request down, and the body that says so.

ApiError
├── BadRequest      400  the request is at fault; `param` is the field
│   └── ContextTooLong   prompt and answer do not fit the model's context
├── UnknownModel    404  a name that is not served here
├── NotKept         404  an answer that was given is asked for
├── NotOffered      404  what others answer here
├── WrongType       415  a body of another type than JSON
├── NoText          501  this door has no tokenizer
└── TooBusy         503  this door cannot look at the request just now
"""

from collections.abc import Mapping

import msgspec

from api.generator import BAD_REQUEST, StreamFailed

SERVER_ERROR = 500
LONGEST_MESSAGE, LONGEST_PARAM = 2000, 200
LEFT_OUT = " […] "
TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """Base of the room's errors: what OpenAI's error body says of one."""

    status = BAD_REQUEST
    code: str | None = None
    retry_after_s: int | None = None

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class BadRequest(ApiError):
    """The request itself is at fault."""


class ContextTooLong(BadRequest):
    """The prompt, or prompt and answer together, are longer than the model's context.

    How many tokens the `prompt` has alone, and the `context` takes, where that is why.
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


class UnknownModel(ApiError):
    """The request names a model that is not served here."""

    status = 404
    code = "model_not_found"


class NotKept(ApiError):
    """An answer that was given before is asked for: none is stored."""

    status = 404


class NotOffered(ApiError):
    """The path is one of OpenAI's, and nothing is done here."""

    status = 404


class WrongType(ApiError):
    """The body is said to be something else than JSON."""

    status = 415


class NoText(ApiError):
    """Text is asked of a door without a tokenizer."""

    status = 501


class TooBusy(ApiError):
    """It is worth trying again in a while."""

    status = 503
    retry_after_s = 1


class ErrorDetail(msgspec.Struct, frozen=True):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """What every refusal looks like, in an answer or in a stream."""

    error: ErrorDetail


def error_body(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> ErrorBody:
    """The body that goes with a status; what a client wrote at length goes not back whole."""
    param = None if param is None else shortened(param, LONGEST_PARAM)
    message = shortened(message, LONGEST_MESSAGE)
    return ErrorBody(ErrorDetail(message, _type_of(status), param, code))


def body_of(error: ApiError | StreamFailed) -> ErrorBody:
    """What the client is told of an error."""
    return error_body(error.status, str(error), error.param, error.code)


def shortened(text: str, most: int) -> str:
    """Its beginning and its end, where it has more characters than `most`."""
    if len(text) <= most:
        return text
    half = (most - len(LEFT_OUT)) // 2
    return f"{text[:half]}{LEFT_OUT}{text[-half:]}"


def _type_of(status: int) -> str:
    fallback = "server_error" if status >= SERVER_ERROR else "invalid_request_error"
    return TYPES.get(status, fallback)
