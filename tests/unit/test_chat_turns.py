"""What a chat repeats is not encoded again; its tokens are those of the whole text."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from api.encoding import INLINE_SIZE
from api.errors import ContextTooLong
from api.text.tokenizing import TextCodec
from tests.fakes.asking import chat
from tests.fakes.text import TEXT, byte_level, marked_turns, served

Message = dict[str, str]
LONG = {"role": "user", "content": TEXT * (INLINE_SIZE // len(TEXT) + 1)}
SAID = {"role": "assistant", "content": "grüße 🚀"}
NEXT = {"role": "user", "content": "the dog"}
TURNS = [LONG, SAID, NEXT]


@dataclass(frozen=True)
class Heard(TextCodec):
    """Remembers what it was asked to encode."""

    asked: list[str] = field(default_factory=list)

    def encode(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        self.asked.append(text)
        return super().encode(text, special_tokens=special_tokens)


@pytest.fixture
def codec() -> Heard:
    plain = marked_turns()
    return Heard(plain.tokenizer, plain.fast)


async def prompt(
    codec: TextCodec, messages: Sequence[Message], *, context: int = 10**5, **fields: object
) -> tuple[int, ...]:
    asked = await chat(
        {"messages": list(messages), **fields}, door=served(codec, context=context)
    )
    return tuple(asked.calls[0].request.prompt)


def whole(codec: TextCodec, messages: Sequence[Message]) -> tuple[int, ...]:
    text = codec.render(messages, {"add_generation_prompt": True})
    return marked_turns().encode(text, special_tokens=False)


async def test_only_the_new_turns_of_a_chat_are_encoded(codec: Heard) -> None:
    assert await prompt(codec, TURNS[:1]) == whole(codec, TURNS[:1])
    codec.asked.clear()
    assert await prompt(codec, TURNS) == whole(codec, TURNS)
    assert codec.asked == ["<|assistant|>grüße 🚀", "<|user|>the dog"]


async def test_who_has_a_salt_neither_gives_nor_takes(codec: Heard) -> None:
    text = codec.render(TURNS, {"add_generation_prompt": True})
    assert await prompt(codec, TURNS, cache_salt="mine") == whole(codec, TURNS)
    assert codec.asked == [text]
    await prompt(codec, TURNS)
    assert len(codec.asked) == 1 + len(TURNS) + 1, "nothing was known"
    assert await prompt(codec, TURNS, cache_salt="mine") == whole(codec, TURNS)
    assert codec.asked[-1] == text


async def test_a_short_chat_is_encoded_as_it_is(codec: Heard) -> None:
    for _ in range(2):
        await prompt(codec, TURNS[1:])
    assert codec.asked == [codec.render(TURNS[1:], {"add_generation_prompt": True})] * 2


async def test_where_no_token_parts_turns_the_whole_is_encoded() -> None:
    codec = byte_level()
    assert codec.turns is None
    text = codec.render(TURNS, {"add_generation_prompt": True})
    assert await prompt(codec, TURNS) == codec.encode(text, special_tokens=False)


async def test_turns_that_cannot_fit_are_not_all_encoded(codec: Heard) -> None:
    with pytest.raises(ContextTooLong, match="more than twice as many"):
        await prompt(codec, [LONG, SAID] * 9, context=100)
    assert codec.asked == [f"<|user|>{LONG['content']}"]


async def test_a_chat_that_is_cut_has_its_last_tokens(codec: Heard) -> None:
    said = await prompt(codec, TURNS, context=200, truncate_prompt_tokens=50)
    assert said == whole(codec, TURNS)[-50:]
