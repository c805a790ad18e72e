"""Writes one message, whole or as the events of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from api.answering import Answer
from api.choices import TextPiece
from api.errors import ErrorBody
from api.messages.bodies import MessagesBody
from api.messages.builder import MessageBuilder
from api.messages.errors import MessagesError, error_of
from api.messages.events import MessageDelta, MessageStart, MessageStop, Ping, Stop, frame_of
from api.messages.shapes import MessageAnswer, StopReason, message_usage, new_message
from api.usage import params_of, timings_of
from engine.request import FinishReason


@dataclass(slots=True)
class MessageWriter:
    """Writes messages; the counterpart of AnswerWriter."""

    answer: Answer
    body: MessagesBody
    builder: MessageBuilder = field(init=False)
    over: bool = field(default=False, init=False)
    _failure: MessagesError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Begin without any text."""
        calling = self.answer.request.calling
        self.builder = MessageBuilder(
            calling.new_stream() if calling else None, self.body.hides_thinking
        )

    @property
    def streams(self) -> bool:
        """See AnswerWriter, here and below."""
        return bool(self.body.stream)

    @property
    def num_prompt_logprobs(self) -> int:
        """0: the log-probabilities of prompts are not reported."""
        return 0

    def opening(self) -> bytes:
        """The two events before all blocks."""
        return frame_of(MessageStart(new_message(self.answer))) + frame_of(Ping())

    def frame(self, piece: TextPiece) -> bytes:
        """The events of a piece; empty if it adds nothing."""
        return self.builder.add_piece(piece)

    def closing(self) -> bytes:
        """Empty: the ending has it all."""
        return b""

    def failing(self, status: int, error: ErrorBody) -> bytes:
        """Empty: the ending reports the failure."""
        self._failure = error_of(status, error, self.answer.request.outer_id)
        return b""

    def ending(self) -> bytes:
        """The last events; from them a client knows that the stream is complete."""
        self.over = True
        if self._failure is not None:
            return frame_of(self._failure)
        delta = MessageDelta(
            self._stop,
            message_usage(self.answer),
            params_of(self.answer.choices[0]),
            timings_of(self.answer),
        )
        return frame_of(delta) + frame_of(MessageStop())

    def whole(self, pieces: Sequence[TextPiece]) -> MessageAnswer:
        """The unstreamed answer: the sum of what a stream would send."""
        for piece in pieces:
            self.builder.add_piece(piece)
        stop = self._stop
        return replace(
            new_message(self.answer),
            content=self.builder.blocks,
            stop_reason=stop.stop_reason,
            stop_sequence=stop.stop_sequence,
            usage=message_usage(self.answer),
            kv_transfer_params=params_of(self.answer.choices[0]),
            pdserve=timings_of(self.answer),
        )

    @property
    def _stop(self) -> Stop:
        return Stop(self._reason, self.builder.stop_string)

    @property
    def _reason(self) -> StopReason:
        builder = self.builder
        if builder.finish is FinishReason.LENGTH:
            room = self.answer.choices[0].call.request.sampling.max_tokens
            full = room < self.body.max_tokens
            return "model_context_window_exceeded" if full else "max_tokens"
        if builder.stop_string is not None:
            return "stop_sequence"
        return "tool_use" if builder.has_whole_calls else "end_turn"
