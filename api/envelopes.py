"""Writes OpenAI answers, whole or chunk by chunk: everything around the choices."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from secrets import token_hex
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from api.answering import Answer
from api.choices import ChoiceState, TextPiece, join_pieces
from api.errors import ErrorBody
from api.generated import DONE
from api.logprobs import LogprobFormatter
from api.node_logprobs import PromptLogprobs
from api.usage import (
    Params,
    Timings,
    Usage,
    params_of,
    timings_of,
    usage_at_end,
    usage_in_chunk,
    usage_of,
)

TokenIds = Sequence[int] | UnsetType


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON of an answer, or of a chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[msgspec.Struct]
    usage: Usage | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: TokenIds = UNSET
    kv_transfer_params: Params | UnsetType = UNSET
    pdserve: Timings | UnsetType = UNSET


class ChoiceFormat(Protocol):
    """How an endpoint (completions, chat) writes a choice."""

    @property
    def logprob_formatter(self) -> LogprobFormatter:
        """Writes the log-probabilities of this endpoint."""

    @property
    def prefix(self) -> str:
        """The prefix of the answer's id."""

    @property
    def kinds(self) -> tuple[str, str]:
        """The value of `object` in an answer, and in a chunk."""

    @property
    def prompt_on_top(self) -> bool:
        """Whether the prompt's token ids are in the envelope, not in the choice."""

    @property
    def varies(self) -> bool:
        """Whether chunks of plain text may differ in more than their text."""

    def opening_choice(self, index: int) -> msgspec.Struct | None:
        """The chunk that a choice's stream begins with, if there is one."""

    def chunk_choices(
        self, piece: TextPiece, prompt: TokenIds, tokens: TokenIds
    ) -> Sequence[msgspec.Struct]:
        """Write a piece as choices of one chunk each, with token ids if they were asked for."""

    def full_choice(
        self, piece: TextPiece, prompt: TokenIds, tokens: TokenIds
    ) -> msgspec.Struct:
        """A whole choice."""


def sse_event(chunk: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


@dataclass(frozen=True, slots=True)
class AnswerWriter:
    """Writes one answer, in the format of its endpoint."""

    answer: Answer
    choice_format: ChoiceFormat
    created: int
    _around: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream."""
        return bool(self.answer.request.body.stream)

    @property
    def over(self) -> bool:
        """Whether an event said that the answer is complete; here only [DONE] does."""
        return False

    def opening(self) -> bytes:
        """The chunks before all text."""
        return b"".join(map(sse_event, self._openings()))

    def _openings(self) -> Sequence[Envelope]:
        return [
            replace(
                self._envelope(1, [opening]),
                usage=usage_in_chunk(self.answer, choice, 0),
                prompt_token_ids=self._prompt(choice, on_top=True),
            )
            for choice in self.answer.choices
            if (opening := self.choice_format.opening_choice(choice.index))
        ]

    def chunks(self, piece: TextPiece) -> Sequence[Envelope]:
        """The chunks of a piece; none if it has nothing that the client asked for."""
        told = piece.text or piece.reasoning or piece.finish or piece.scored_tokens
        if not (told or (self._ids and piece.tokens)):
            return ()
        choice = self.answer.choices[piece.index]
        begins = piece.num_tokens == len(piece.tokens)
        prompt = self._prompt(choice, on_top=False) if begins else UNSET
        tokens = piece.tokens if self._ids else UNSET
        parts = self.choice_format.chunk_choices(piece, prompt, tokens)
        return [
            replace(
                self._envelope(1, [part]),
                usage=usage_in_chunk(self.answer, choice, piece.num_tokens),
                kv_transfer_params=params_of(choice) if piece.finish and not left else UNSET,
            )
            for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True)
        ]

    def frame(self, piece: TextPiece) -> bytes:
        """The events of a piece; empty if there are none.

        Nearly all pieces of a choice differ only in their text, so the JSON around the text is
        cached from the second piece on; the first piece is not delayed by that.
        """
        begins = piece.num_tokens == len(piece.tokens)
        more = begins or piece.finish or piece.scored_tokens or piece.reasoning
        if more or not piece.text or self._varies:
            return b"".join(map(sse_event, self.chunks(piece)))
        if (around := self._around.get(piece.index)) is None:
            around = self._around[piece.index] = self._without_text(piece)
        return around[0] + msgspec.json.encode(piece.text) + around[1]

    def around(self, index: int) -> tuple[bytes, bytes] | None:
        """The bytes before and after the text in a choice's events, once they are known."""
        return self._around.get(index)

    @property
    def _varies(self) -> bool:
        """Whether the pieces differ in more than their text."""
        options = self.answer.request.options
        return self._ids or self.choice_format.varies or bool(options.continuous_usage_stats)

    def _without_text(self, piece: TextPiece) -> tuple[bytes, bytes]:
        """The event's bytes before and after the text; the marker cannot occur in the piece."""
        mark = token_hex(16)
        [chunk] = self.chunks(replaced(piece, text=mark))
        before, behind = sse_event(chunk).split(f'"{mark}"'.encode())
        return before, behind

    def closing(self) -> bytes:
        """The chunk after all text: usage and stages, if the client asked for them."""
        usage, timings = usage_at_end(self.answer), timings_of(self.answer)
        if usage is UNSET and timings is UNSET:
            return b""
        return sse_event(replace(self._envelope(1, []), usage=usage, pdserve=timings))

    def failing(self, status: int, error: ErrorBody) -> bytes:
        """The event of a failed stream; `status` is the HTTP status it would have had."""
        del status
        return sse_event(error)

    def ending(self) -> bytes:
        """The bytes that end every stream."""
        return DONE

    def whole(self, pieces: Sequence[TextPiece]) -> Envelope:
        """The unstreamed answer, made of all pieces."""
        said: list[list[TextPiece]] = [[] for _ in self.answer.choices]
        for piece in pieces:
            said[piece.index].append(piece)
        first = self.answer.choices[0]
        return replace(
            self._envelope(0, [self._full(join_pieces(parts)) for parts in said]),
            usage=usage_of(self.answer),
            prompt_token_ids=self._prompt(first, on_top=True),
            prompt_logprobs=self._prompt_logprobs(first, on_top=True),
            kv_transfer_params=params_of(first),
            pdserve=timings_of(self.answer),
        )

    @property
    def num_prompt_logprobs(self) -> int:
        """How many prompt tokens get log-probabilities in the answer."""
        if self.answer.request.body.prompt_logprobs is None:
            return 0
        return sum(len(choice.prompt_logprobs) for choice in self.answer.choices)

    @property
    def _ids(self) -> bool:
        return bool(self.answer.request.body.return_token_ids)

    def _full(self, piece: TextPiece) -> msgspec.Struct:
        choice = self.answer.choices[piece.index]
        prompt = self._prompt(choice, on_top=False)
        whole = self.choice_format.full_choice(
            piece, prompt, piece.tokens if self._ids else UNSET
        )
        if (scored := self._prompt_logprobs(choice, on_top=False)) is not UNSET:
            return replace(whole, prompt_logprobs=scored)
        return whole

    def _prompt_logprobs(
        self, choice: ChoiceState, *, on_top: bool
    ) -> PromptLogprobs | UnsetType:
        """The prompt's log-probabilities, placed where its token ids are."""
        request = self.answer.request
        if (
            request.body.prompt_logprobs is None
            or self.choice_format.prompt_on_top is not on_top
        ):
            return UNSET
        first = self.answer.choices[choice.index - choice.index % request.n]
        return self.choice_format.logprob_formatter.prompt(first.prompt_logprobs)

    def _prompt(self, choice: ChoiceState, *, on_top: bool) -> TokenIds:
        wanted = self._ids and self.choice_format.prompt_on_top is on_top
        return choice.call.request.prompt if wanted else UNSET

    def _envelope(self, kind: int, choices: Sequence[msgspec.Struct]) -> Envelope:
        request = self.answer.request
        return Envelope(
            id=self.choice_format.prefix + request.outer_id,
            object=self.choice_format.kinds[kind],
            created=self.created,
            model=request.model,
            choices=choices,
        )
