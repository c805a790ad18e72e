"""A choice as POST /v1/chat/completions writes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from api.choices import TextPiece
from api.envelopes import TokenIds
from api.logprobs import ChatLogprobs, LogprobFormatter
from api.tools.deltas import AnyCall, CallDelta, ToolCallStream, join_deltas

ASSISTANT: Literal["assistant"] = "assistant"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message. `reasoning` is always there, as clients look for it.

    The content is null where the answer has only tool calls or reasoning.
    """

    role: str = ASSISTANT
    content: str | None
    refusal: None = None
    reasoning: str | None = None
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: Sequence[AnyCall] | UnsetType = UNSET


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: Sequence[CallDelta] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice."""

    index: int
    message: ChatMessage
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
class ChatFormat:
    """Chat messages; a stream begins with the role.

    `tellers`, one for each choice, parse tool calls out of the text. Where the model `thinks`,
    its reasoning is sent under both names that clients know.
    """

    logprob_formatter: LogprobFormatter
    tellers: Sequence[ToolCallStream] = ()
    prefix: str = "chatcmpl-"
    kinds: tuple[str, str] = ("chat.completion", "chat.completion.chunk")
    prompt_on_top: bool = True
    thinks: bool = False

    def opening_choice(self, index: int) -> ChatChunkChoice:
        """The role, and no text yet."""
        return ChatChunkChoice(index=index, delta=Delta(ASSISTANT, ""))

    @property
    def varies(self) -> bool:
        """Chunks with tool calls have more than text."""
        return bool(self.tellers)

    def chunk_choices(
        self, piece: TextPiece, prompt: TokenIds, tokens: TokenIds
    ) -> Sequence[ChatChunkChoice]:
        """The new text, or content and tool calls, one delta for each.

        Token ids and logprobs come with the first delta, the finish reason with the last:
        clients that add deltas up know only one of a kind in a chunk.
        """
        del prompt
        deltas, finish = self._deltas(piece)
        logprobs = self.logprob_formatter.chat(piece.scored_tokens)
        if not deltas and (finish or logprobs or tokens):
            deltas = [Delta()]
        last = len(deltas) - 1
        return [
            ChatChunkChoice(
                index=piece.index,
                delta=delta,
                logprobs=None if place else logprobs,
                finish_reason=finish if place == last else None,
                stop_reason=piece.stop_reason if finish and place == last else UNSET,
                token_ids=_none_of(tokens) if place else tokens,
            )
            for place, delta in enumerate(deltas)
        ]

    def _deltas(self, piece: TextPiece) -> tuple[Sequence[Delta], str | None]:
        """The deltas of a piece, and the finish reason if it is the last."""
        aloud = [_aloud(piece.reasoning)] if piece.reasoning else []
        if not self.tellers:
            text = [Delta(content=piece.text or UNSET)] if piece.text or not aloud else []
            return [*aloud, *text], piece.finish
        teller = self.tellers[piece.index]
        said = teller.read(piece.text, piece.finish)
        return [*aloud, *map(_delta, said)], teller.finish_reason(piece.finish)

    def full_choice(self, piece: TextPiece, prompt: TokenIds, tokens: TokenIds) -> ChatChoice:
        """The message."""
        del prompt
        message, finish = self._message(piece)
        return ChatChoice(
            index=piece.index,
            message=message,
            logprobs=self.logprob_formatter.chat(piece.scored_tokens),
            finish_reason=finish,
            stop_reason=piece.stop_reason,
            token_ids=tokens,
        )

    def _message(self, piece: TextPiece) -> tuple[ChatMessage, str | None]:
        if not self.tellers:
            return self._chat_message(piece, piece.text, ()), piece.finish
        teller = self.tellers[piece.index]
        content, calls = join_deltas(teller.read(piece.text, piece.finish))
        return self._chat_message(piece, content, calls), teller.finish_reason(piece.finish)

    def _chat_message(
        self, piece: TextPiece, content: str, calls: Sequence[AnyCall]
    ) -> ChatMessage:
        aloud = piece.reasoning or None
        return ChatMessage(
            content=content or None if calls or aloud else content,
            reasoning=aloud,
            reasoning_content=aloud if self.thinks else UNSET,
            tool_calls=calls or UNSET,
        )


def _aloud(text: str) -> Delta:
    return Delta(reasoning=text, reasoning_content=text)


def _delta(said: str | CallDelta) -> Delta:
    return Delta(content=said) if isinstance(said, str) else Delta(tool_calls=[said])


def _none_of(tokens: TokenIds) -> TokenIds:
    """The ids of a later delta: they came with the first."""
    return UNSET if tokens is UNSET else ()
