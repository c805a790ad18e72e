"""A choice as POST /v1/completions writes it."""

import msgspec
from msgspec import UNSET

from api.answering import Piece
from api.envelopes import TokenIds


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice, or a piece of it."""

    index: int
    text: str
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_token_ids: TokenIds = UNSET
    token_ids: TokenIds = UNSET


class CompletionForm:
    """Text, and nothing around it."""

    prefix = "cmpl-"
    kinds = ("text_completion", "text_completion")
    prompt_on_top = False

    def opening(self, index: int) -> None:
        """A completion begins with its text."""

    def part(self, piece: Piece, prompt: TokenIds, tokens: TokenIds) -> CompletionChoice:
        """A piece looks like a whole."""
        return self.full(piece, prompt, tokens)

    def full(self, piece: Piece, prompt: TokenIds, tokens: TokenIds) -> CompletionChoice:
        """One choice."""
        return CompletionChoice(
            index=piece.index,
            text=piece.text,
            finish_reason=piece.finish,
            stop_reason=piece.stop_reason,
            prompt_token_ids=prompt,
            token_ids=tokens,
        )
