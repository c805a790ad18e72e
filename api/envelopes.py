"""What every OpenAI answer has around its choices, whole or chunk by chunk."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from secrets import token_hex
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from api.answering import Answer
from api.choices import Choice, Piece, joined
from api.costs import (
    Params,
    Timings,
    Usage,
    params_of,
    timings_of,
    usage_at_end,
    usage_in_chunk,
    usage_of,
)
from api.errors import ErrorBody
from api.generated import DONE
from api.logprobs import Telling
from api.node_logprobs import PromptLogprobs

TokenIds = Sequence[int] | UnsetType


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, or a chunk of a stream."""

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


class Form(Protocol):
    """How one endpoint writes down a choice."""

    @property
    def telling(self) -> Telling:
        """How tokens are named beside their log-probabilities."""

    @property
    def prefix(self) -> str:
        """Of the answer's id."""

    @property
    def kinds(self) -> tuple[str, str]:
        """What `object` says of an answer, and of a chunk."""

    @property
    def prompt_on_top(self) -> bool:
        """Whether the prompt's token ids stand in the envelope, not in the choice."""

    @property
    def varies(self) -> bool:
        """Whether more than the text may differ from piece to piece."""

    def opening(self, index: int) -> msgspec.Struct | None:
        """What a choice's stream begins with."""

    def parts(
        self, piece: Piece, prompt: TokenIds, tokens: TokenIds
    ) -> Sequence[msgspec.Struct]:
        """A piece in a stream, for a chunk each; the token ids where they were asked for."""

    def full(self, piece: Piece, prompt: TokenIds, tokens: TokenIds) -> msgspec.Struct:
        """A whole choice."""


def event_of(chunk: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes one answer down."""

    answer: Answer
    form: Form
    created: int
    _around: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    @property
    def streams(self) -> bool:
        """Whether the client wants it as it comes."""
        return bool(self.answer.asked.body.stream)

    @property
    def over(self) -> bool:
        """Whether the last event was written, and says so itself: here [DONE] does."""
        return False

    def opening(self) -> bytes:
        """The chunks before all text."""
        return b"".join(map(event_of, self._openings()))

    def _openings(self) -> Sequence[Envelope]:
        return [
            replace(
                self._bare(1, [opening]),
                usage=usage_in_chunk(self.answer, choice, 0),
                prompt_token_ids=self._prompt(choice, on_top=True),
            )
            for choice in self.answer.choices
            if (opening := self.form.opening(choice.index))
        ]

    def chunks(self, piece: Piece) -> Sequence[Envelope]:
        """A piece; none where it has nothing that the client wants."""
        told = piece.text or piece.reasoning or piece.finish or piece.places
        if not (told or (self._ids and piece.tokens)):
            return ()
        choice = self.answer.choices[piece.index]
        begins = piece.num_tokens == len(piece.tokens)
        prompt = self._prompt(choice, on_top=False) if begins else UNSET
        tokens = piece.tokens if self._ids else UNSET
        parts = self.form.parts(piece, prompt, tokens)
        return [
            replace(
                self._bare(1, [part]),
                usage=usage_in_chunk(self.answer, choice, piece.num_tokens),
                kv_transfer_params=params_of(choice) if piece.finish and not left else UNSET,
            )
            for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True)
        ]

    def frame(self, piece: Piece) -> bytes:
        """The event of a chunk, empty where there is none.

        Nearly all pieces of a choice differ in their text only: what is around it is kept,
        once it was used: nobody waits as for the first.
        """
        begins = piece.num_tokens == len(piece.tokens)
        more = begins or piece.finish or piece.places or piece.reasoning
        if more or not piece.text or self._varies:
            return b"".join(map(event_of, self.chunks(piece)))
        if (around := self._around.get(piece.index)) is None:
            around = self._around[piece.index] = self._without_text(piece)
        return around[0] + msgspec.json.encode(piece.text) + around[1]

    def around(self, index: int) -> tuple[bytes, bytes] | None:
        """What is around the text in a choice's events, once one was written that is kept."""
        return self._around.get(index)

    @property
    def _varies(self) -> bool:
        """Whether more than the text differs."""
        options = self.answer.asked.options
        return self._ids or self.form.varies or bool(options.continuous_usage_stats)

    def _without_text(self, piece: Piece) -> tuple[bytes, bytes]:
        """What is before and behind the text; no client can know the mark."""
        mark = token_hex(16)
        [chunk] = self.chunks(replaced(piece, text=mark))
        before, behind = event_of(chunk).split(f'"{mark}"'.encode())
        return before, behind

    def closing(self) -> bytes:
        """The chunk after all text: usage and stages, where the client asked for them."""
        usage, timings = usage_at_end(self.answer), timings_of(self.answer)
        if usage is UNSET and timings is UNSET:
            return b""
        return event_of(replace(self._bare(1, []), usage=usage, pdserve=timings))

    def failing(self, status: int, error: ErrorBody) -> bytes:
        """Why there will be no more text; the `status` is what it would have been told with."""
        del status
        return event_of(error)

    def ending(self) -> bytes:
        """What every stream ends with."""
        return DONE

    def whole(self, pieces: Sequence[Piece]) -> Envelope:
        """The answer that is not streamed."""
        said: list[list[Piece]] = [[] for _ in self.answer.choices]
        for piece in pieces:
            said[piece.index].append(piece)
        first = self.answer.choices[0]
        return replace(
            self._bare(0, [self._full(joined(parts)) for parts in said]),
            usage=usage_of(self.answer),
            prompt_token_ids=self._prompt(first, on_top=True),
            prompt_logprobs=self._foretold(first, on_top=True),
            kv_transfer_params=params_of(first),
            pdserve=timings_of(self.answer),
        )

    @property
    def num_foretold(self) -> int:
        """Tokens of prompts that the answer tells the log-probabilities of."""
        if self.answer.asked.body.prompt_logprobs is None:
            return 0
        return sum(len(choice.prompt_logprobs) for choice in self.answer.choices)

    @property
    def _ids(self) -> bool:
        return bool(self.answer.asked.body.return_token_ids)

    def _full(self, piece: Piece) -> msgspec.Struct:
        choice = self.answer.choices[piece.index]
        prompt = self._prompt(choice, on_top=False)
        whole = self.form.full(piece, prompt, piece.tokens if self._ids else UNSET)
        if (foretold := self._foretold(choice, on_top=False)) is not UNSET:
            return replace(whole, prompt_logprobs=foretold)
        return whole

    def _foretold(self, choice: Choice, *, on_top: bool) -> PromptLogprobs | UnsetType:
        """A prompt's log-probabilities stand where its token ids do."""
        asked = self.answer.asked
        if asked.body.prompt_logprobs is None or self.form.prompt_on_top is not on_top:
            return UNSET
        first = self.answer.choices[choice.index - choice.index % asked.n]
        return self.form.telling.prompt(first.prompt_logprobs)

    def _prompt(self, choice: Choice, *, on_top: bool) -> TokenIds:
        wanted = self._ids and self.form.prompt_on_top is on_top
        return choice.call.request.prompt if wanted else UNSET

    def _bare(self, kind: int, choices: Sequence[msgspec.Struct]) -> Envelope:
        asked = self.answer.asked
        return Envelope(
            id=self.form.prefix + asked.outer_id,
            object=self.form.kinds[kind],
            created=self.created,
            model=asked.model,
            choices=choices,
        )
