"""A choice as POST /v1/chat/completions writes it."""

from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from api.choices import Piece
from api.envelopes import TokenIds
from api.logprobs import ChatLogprobs, Telling

ASSISTANT: Literal["assistant"] = "assistant"


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message. Clients look for `reasoning`, even where there is none."""

    role: str = ASSISTANT
    content: str
    refusal: None = None
    reasoning: None = None


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice."""

    index: int
    message: Said
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: TokenIds = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one choice."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: TokenIds = UNSET


@dataclass(frozen=True, slots=True)
class ChatForm:
    """Messages; a stream begins by saying whose."""

    telling: Telling
    prefix: str = "chatcmpl-"
    kinds: tuple[str, str] = ("chat.completion", "chat.completion.chunk")
    prompt_on_top: bool = True

    def opening(self, index: int) -> ChatChunkChoice:
        """The role, and no text yet."""
        return ChatChunkChoice(index=index, delta=Delta(ASSISTANT, ""))

    def part(self, piece: Piece, prompt: TokenIds, tokens: TokenIds) -> ChatChunkChoice:
        """The text that is new."""
        del prompt
        return ChatChunkChoice(
            index=piece.index,
            delta=Delta(content=piece.text or UNSET),
            logprobs=self.telling.chat(piece.places),
            finish_reason=piece.finish,
            stop_reason=piece.stop_reason if piece.finish else UNSET,
            token_ids=tokens,
        )

    def full(self, piece: Piece, prompt: TokenIds, tokens: TokenIds) -> ChatChoice:
        """The message."""
        del prompt
        return ChatChoice(
            index=piece.index,
            message=Said(content=piece.text),
            logprobs=self.telling.chat(piece.places),
            finish_reason=piece.finish,
            stop_reason=piece.stop_reason,
            token_ids=tokens,
        )
