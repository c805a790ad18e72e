"""Writes one response, whole or as the events of a stream."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from api.answering import Answer
from api.choices import TextPiece
from api.errors import ErrorBody
from api.logprobs import LogprobFormatter
from api.responses.bodies import ResponsesBody
from api.responses.builder import ResponseBuilder
from api.responses.events import ResponseEvent, frame_of
from api.responses.namespaces import namespaced_names
from api.responses.shapes import (
    ErrorCode,
    IncompleteDetails,
    Response,
    ResponseError,
    new_response,
    response_usage,
)
from api.usage import params_of, timings_of
from engine.request import FinishReason

CODES: dict[str, ErrorCode] = {
    "invalid_request_error": "invalid_prompt",
    "rate_limit_error": "rate_limit_exceeded",
}
"""Error codes that OpenAI defines for responses; all others become the server's."""


@dataclass(slots=True)
class ResponseWriter:
    """Writes responses; the counterpart of AnswerWriter. Its events are numbered, so each must
    be written only once.
    """

    answer: Answer
    body: ResponsesBody
    clock: Callable[[], float]
    builder: ResponseBuilder = field(init=False)
    over: bool = field(default=False, init=False)
    _response: Response = field(init=False)
    _failure: ResponseError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Begin without any text."""
        asked = self.answer.request
        telling = LogprobFormatter(
            asked.codec.vocabulary, bool(self.body.return_tokens_as_token_ids)
        )
        call_stream = asked.calling.new_stream() if asked.calling else None
        visible = self.answer.choices[0].detokenizer.visible
        self.builder = ResponseBuilder(
            telling, visible, call_stream, namespaced_names(self.body.tools or ())
        )
        self._response = new_response(self.answer, self.body, int(self.clock()))

    @property
    def streams(self) -> bool:
        """See AnswerWriter, here and below."""
        return bool(self.body.stream)

    @property
    def num_prompt_logprobs(self) -> int:
        """0: the log-probabilities of prompts are not reported."""
        return 0

    def opening(self) -> bytes:
        """The two events before all items."""
        return self._event("created", self._response) + self._event(
            "in_progress", self._response
        )

    def frame(self, piece: TextPiece) -> bytes:
        """The events of a piece; empty if it adds nothing."""
        return self.builder.add_piece(piece)

    def closing(self) -> bytes:
        """Empty: the ending has it all."""
        return b""

    def failing(self, status: int, error: ErrorBody) -> bytes:
        """Empty: the ending reports the failure."""
        del status
        code = CODES.get(error.error.type, "server_error")
        self._failure = ResponseError(code, error.error.message)
        return b""

    def ending(self) -> bytes:
        """The last event; from it a client knows that the stream is complete."""
        self.over = True
        response = self._final_response()
        return self._event(response.status, response)

    def whole(self, pieces: Sequence[TextPiece]) -> Response:
        """The unstreamed answer: the response of a stream's last event."""
        for piece in pieces:
            self.builder.add_piece(piece)
        return self._final_response()

    def _event(self, kind: str, response: Response) -> bytes:
        return frame_of(ResponseEvent(f"response.{kind}", response, self.builder.next_number()))

    def _final_response(self) -> Response:
        builder, failed = self.builder, self._failure is not None
        cut = builder.finish is FinishReason.LENGTH and not failed
        complete = not (cut or failed)
        return replace(
            self._response,
            status="completed" if complete else "incomplete" if cut else "failed",
            completed_at=int(self.clock()) if complete else None,
            error=self._failure,
            incomplete_details=IncompleteDetails("max_output_tokens") if cut else None,
            output=builder.items_so_far(),
            usage=response_usage(self.answer),
            kv_transfer_params=params_of(self.answer.choices[0]),
            pdserve=timings_of(self.answer),
        )
