"""A long prompt is made tokens beside the loop; for a short one a thread costs too much."""

import threading
from typing import Any

import pytest

from api.encoding import INLINE_SIZE
from api.generator import Event, Leg, TokenEvent
from api.text.tokenizing import TextCodec
from engine.request import FinishReason, Request
from tests.fakes.http import Client
from tests.fakes.text import FakeDoor, byte_level, served

CODEC, WORDS = byte_level(), "the cat sat on "
TEXTS = {True: WORDS * (2 * INLINE_SIZE // len(WORDS)), False: WORDS}
MAIN = threading.main_thread().name


class Noting(TextCodec):
    """Notes who encodes."""

    threads: set[str]

    def encode(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        if WORDS in text:
            self.threads.add(threading.current_thread().name)
        return super().encode(text, special_tokens=special_tokens)


def one_token(request: Request, leg: Leg) -> list[Event]:
    del request, leg
    return [TokenEvent((9,), FinishReason.LENGTH)]


@pytest.mark.parametrize("is_long", TEXTS)
@pytest.mark.parametrize("chat", [False, True])
async def test_a_long_prompt_is_encoded_beside_the_loop_and_a_short_one_on_it(
    *, chat: bool, is_long: bool
) -> None:
    codec = Noting(CODEC.tokenizer, CODEC.fast)
    codec.threads = set()
    client = Client(FakeDoor(one_token), served(codec, context=None))
    messages: list[Any] = [{"role": "user", "content": TEXTS[is_long]}]
    fields: dict[str, Any] = {"messages": messages} if chat else {"prompt": TEXTS[is_long]}
    said = await (client.chat if chat else client.complete)(max_tokens=1, **fields)
    assert said.status == 200
    assert codec.threads
    assert (MAIN in codec.threads) is not is_long
