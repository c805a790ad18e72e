"""A choice as POST /v1/completions writes it."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from api.choices import TextPiece
from api.envelopes import TokenIds
from api.logprobs import CompletionLogprobs, LogprobFormatter
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
class CompletionFormat:
    """Plain text completions."""

    logprob_formatter: LogprobFormatter
    prefix: str = "cmpl-"
    kinds: tuple[str, str] = ("text_completion", "text_completion")
    prompt_on_top: bool = False
    varies: bool = False

    def opening_choice(self, index: int) -> None:
        """None: a completion begins with its text."""

    def chunk_choices(
        self, piece: TextPiece, prompt: TokenIds, tokens: TokenIds
    ) -> Sequence[CompletionChoice]:
        """One choice: a piece is written like a whole answer."""
        return [self.full_choice(piece, prompt, tokens)]

    def full_choice(
        self, piece: TextPiece, prompt: TokenIds, tokens: TokenIds
    ) -> CompletionChoice:
        """One choice."""
        return CompletionChoice(
            index=piece.index,
            text=piece.text,
            logprobs=self.logprob_formatter.completion(piece.scored_tokens),
            finish_reason=piece.finish,
            stop_reason=piece.stop_reason,
            prompt_token_ids=prompt,
            token_ids=tokens,
        )
