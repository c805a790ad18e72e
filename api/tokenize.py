"""The tokenizer's endpoints: texts and conversations to token ids, and back."""

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from api.bodies import ChatBody, Documents, Effort, Messages, Tools, convert, read_object
from api.encoding import MOST_TOKENS, LengthLimit, encode_text, run_off_loop
from api.errors import BadRequest
from api.fields import TOKENIZE
from api.rendering import render_chat
from api.served import ServedModel
from engine.request import TokenId

Body = TypeVar("Body", bound="ModelBody")


class ModelBody(msgspec.Struct, frozen=True, kw_only=True):
    """Null is the same as absent."""

    model: str | None = None
    request_id: str | None = None


class TokenizeBody(ModelBody, frozen=True, kw_only=True):
    """POST /tokenize: a `prompt` as for a completion, or `messages` as for a chat."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Documents | None = None
    tools: Tools | None = None
    reasoning_effort: Effort | None = None

    def chat(self, messages: list[dict[str, Any]]) -> ChatBody:
        """The template's part of the body, as a chat."""
        return ChatBody(
            messages=messages,
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            chat_template_kwargs=self.chat_template_kwargs,
            documents=self.documents,
            tools=self.tools,
            reasoning_effort=self.reasoning_effort,
        )


class DetokenizeBody(ModelBody, frozen=True, kw_only=True):
    """POST /detokenize."""

    tokens: Annotated[tuple[TokenId, ...], Meta(max_length=MOST_TOKENS)]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """`max_model_len` is None while nobody says it, `token_strs` where nobody asked."""

    count: int
    max_model_len: int | None
    tokens: Sequence[int]
    token_strs: Sequence[str] | None = None


class Detokenized(msgspec.Struct, frozen=True):
    """The text."""

    prompt: str


def read(data: bytes, kind: type[Body]) -> Body:
    """Decode and check the body; raises BadRequest for any invalid bytes."""
    return convert(read_object(data, TOKENIZE), kind)


async def tokenized(served: ServedModel, body: TokenizeBody, size: int) -> Tokenized:
    """The tokens of a prompt, whether they fit the context or not; `size` is that of the body,
    in bytes. Raises ApiError.
    """
    served.resolve_name(body.model)
    codec, context = served.text, served.max_model_len()

    def encode() -> Tokenized:
        tokens = _tokens(served, body)
        strings = (
            [codec.vocabulary_entry(one) for one in tokens] if body.return_token_strs else None
        )
        return Tokenized(
            count=len(tokens), max_model_len=context, tokens=tokens, token_strs=strings
        )

    return await run_off_loop(size, encode, codec)


async def detokenized(served: ServedModel, body: DetokenizeBody) -> Detokenized:
    """Decode the tokens to text, special tokens included. Raises ApiError."""
    served.resolve_name(body.model)
    codec, largest = served.text, max(body.tokens, default=0)
    if largest >= served.num_token_ids:
        raise BadRequest(f"token id {largest} is out of vocabulary", "tokens")

    def decode() -> str:
        return codec.decode(body.tokens, skip_special_tokens=False)

    return Detokenized(await run_off_loop(len(body.tokens), decode, codec))


def _tokens(served: ServedModel, body: TokenizeBody) -> Sequence[int]:
    if (body.prompt is None) == (body.messages is None):
        raise BadRequest("give prompt, or messages", "prompt")
    codec, fit = served.text, LengthLimit(max_tokens=MOST_TOKENS)
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        return encode_text(codec, body.prompt, fit, special=special)
    assert body.messages is not None
    chat, parser = body.chat(body.messages), served.reasoning_parser
    text, _ = render_chat(chat, codec, parser, must_call=False)
    return encode_text(codec, text, fit, special=bool(body.add_special_tokens))
