"""A choice as POST /v1/completions writes it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from api.choices import Piece
from api.envelopes import TokenIds
from api.logprobs import CompletionLogprobs, Telling
from api.node_logprobs import PromptLogprobs


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice, or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: TokenIds = UNSET
    token_ids: TokenIds = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """Text, and nothing around it."""

    telling: Telling
    prefix: str = "cmpl-"
    kinds: tuple[str, str] = ("text_completion", "text_completion")
    prompt_on_top: bool = False
    varies: bool = False

    def opening(self, index: int) -> None:
        """A completion begins with its text."""

    def parts(
        self, piece: Piece, prompt: TokenIds, tokens: TokenIds
    ) -> Sequence[CompletionChoice]:
        """A piece looks like a whole."""
        return [self.full(piece, prompt, tokens)]

    def full(self, piece: Piece, prompt: TokenIds, tokens: TokenIds) -> CompletionChoice:
        """One choice."""
        return CompletionChoice(
            index=piece.index,
            text=piece.text,
            logprobs=self.telling.completion(piece.places),
            finish_reason=piece.finish,
            stop_reason=piece.stop_reason,
            prompt_token_ids=prompt,
            token_ids=tokens,
        )
