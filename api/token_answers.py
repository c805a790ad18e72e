"""Writes answers in token ids, as vLLM's POST /inference/v1/generate does. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from api.answering import Answer
from api.choices import TextPiece, join_pieces
from api.envelopes import sse_event
from api.errors import ErrorBody
from api.generated import DONE
from api.node_logprobs import NodeLogprobs, PromptLogprobs, node_logprobs_of, prompt_logprobs_of
from api.usage import Timings, Usage, timings_of, usage_at_end, usage_in_chunk, usage_of


class TokenChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice, or what is new of it."""

    index: int
    token_ids: Sequence[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: NodeLogprobs | None = None


class TokenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream."""

    request_id: str
    choices: Sequence[TokenChoice]
    usage: Usage | UnsetType | None = UNSET
    pdserve: Timings | UnsetType = UNSET


class TokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer that is not streamed."""

    request_id: str
    model: str
    created: int
    choices: Sequence[TokenChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    kv_transfer_params: None = None
    output_mode: str = "tokens"
    pdserve: Timings | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class TokenWriter:
    """Writes one answer in token ids; the counterpart of AnswerWriter."""

    answer: Answer
    created: int

    @property
    def streams(self) -> bool:
        """See AnswerWriter, here and below."""
        return bool(self.answer.request.body.stream)

    @property
    def num_prompt_logprobs(self) -> int:
        """The count for the first prompt, as there is only one."""
        return len(self.answer.choices[0].prompt_logprobs)

    @property
    def over(self) -> bool:
        """No: only [DONE] says that the answer is complete."""
        return False

    def opening(self) -> bytes:
        """Nothing comes before the first token."""
        return b""

    def frame(self, piece: TextPiece) -> bytes:
        """The event of a piece that has tokens or the end."""
        choice = self.answer.choices[piece.index]
        usage = usage_in_chunk(self.answer, choice, piece.num_tokens)
        return sse_event(self._chunk([_choice(piece)], usage=usage))

    def closing(self) -> bytes:
        """Usage and stages, if the client asked for them."""
        usage, timings = usage_at_end(self.answer), timings_of(self.answer)
        if usage is UNSET and timings is UNSET:
            return b""
        return sse_event(self._chunk([], usage=usage, timings=timings))

    def failing(self, status: int, error: ErrorBody) -> bytes:
        """The event that says why there will be no more tokens."""
        del status
        return sse_event(error)

    def ending(self) -> bytes:
        """The bytes that end every stream."""
        return DONE

    def whole(self, pieces: Sequence[TextPiece]) -> TokenAnswer:
        """The answer that is not streamed."""
        said: list[list[TextPiece]] = [[] for _ in self.answer.choices]
        for piece in pieces:
            said[piece.index].append(piece)
        foretold = self.answer.choices[0].prompt_logprobs
        return TokenAnswer(
            request_id=self.answer.request.outer_id,
            model=self.answer.request.model,
            created=self.created,
            choices=[_choice(join_pieces(parts)) for parts in said],
            usage=usage_of(self.answer),
            prompt_logprobs=prompt_logprobs_of(foretold) if foretold else None,
            pdserve=timings_of(self.answer),
        )

    def _chunk(
        self,
        choices: Sequence[TokenChoice],
        *,
        usage: Usage | UnsetType | None,
        timings: Timings | UnsetType = UNSET,
    ) -> TokenChunk:
        name = self.answer.request.outer_id
        return TokenChunk(request_id=name, choices=choices, usage=usage, pdserve=timings)


def _choice(piece: TextPiece) -> TokenChoice:
    ranked = [place.ranked for place in piece.scored_tokens]
    return TokenChoice(
        index=piece.index,
        token_ids=piece.tokens,
        finish_reason=piece.finish,
        stop_reason=piece.stop_reason,
        logprobs=node_logprobs_of(ranked) if ranked else None,
    )
