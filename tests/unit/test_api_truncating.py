"""Of a long text that is truncated, no more is encoded at once than a stretch."""

import threading
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from api.encoding import INLINE_SIZE, MOST_TOKENS
from api.errors import BadRequest, ContextTooLong
from api.pooling.bodies import PoolingBody
from api.pooling.encoding import InputEncoder
from api.pooling.request_parser import PoolingRequestParser
from api.text.tokenizing import LONG, TextCodec
from tests.fakes.asking import complete
from tests.fakes.embedder import EMBEDS, serving
from tests.fakes.text import byte_level, served

CODEC = byte_level()
CONTEXT = 200
LONG_TEXT = "the cat sat. " * (2 * LONG // 13)


@dataclass
class Listening:
    """A tokenizer's Rust part, and the longest text that it was given at once."""

    fast: Any
    longest: int = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self.fast, name)

    def encode_batch(self, texts: list[str], **options: bool) -> Any:  # noqa: ANN401
        self.longest = max(self.longest, *map(len, texts))
        return self.fast.encode_batch(texts, **options)

    def encode_batch_fast(self, texts: list[str], **options: bool) -> Any:  # noqa: ANN401
        self.longest = max(self.longest, *map(len, texts))
        return self.fast.encode_batch_fast(texts, **options)


@pytest.fixture
def heard() -> Listening:
    return Listening(CODEC.fast)


@pytest.fixture
def codec(heard: Listening) -> TextCodec:
    made = TextCodec(CODEC.tokenizer, heard)
    made.__dict__["pairs"] = None  # it is the tokenizer that is listened to
    return made


@pytest.fixture(scope="module")
def whole() -> tuple[int, ...]:
    return CODEC.encode(LONG_TEXT)


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("most", [5, -1, CONTEXT - 10])
async def test_a_prompt_is_one_end_of_the_whole_text(
    side: str | None, most: int, heard: Listening, codec: TextCodec, whole: tuple[int, ...]
) -> None:
    fields = {"prompt": LONG_TEXT, "truncate_prompt_tokens": most, "max_tokens": 8}
    asked = await complete(
        {**fields, "truncation_side": side}, door=served(codec, context=CONTEXT)
    )
    kept = CONTEXT - 8 if most < 0 else most
    end = whole[:kept] if side == "right" else whole[-kept:]
    assert asked.calls[0].request.prompt == end
    assert 0 < heard.longest < LONG


async def test_what_would_not_fit_truncated_either_is_refused_all_the_same(
    heard: Listening, codec: TextCodec
) -> None:
    fields = {"prompt": LONG_TEXT, "truncate_prompt_tokens": 10**9}
    with pytest.raises(ContextTooLong):
        await complete(fields, door=served(codec))
    assert 0 < heard.longest < LONG


class Asked(TextCodec):
    """Of how many tokens it was asked whether a text has more by far: it has."""

    def far_exceeds(self, text: str, most: int) -> bool:
        del text
        counts.append(most)
        return True


counts = list[int]()


@pytest.mark.parametrize("fields", [{}, {"truncate_prompt_tokens": -1}])
async def test_a_text_is_not_without_bounds_where_nobody_knows_the_context(
    fields: dict[str, int],
) -> None:
    codec = Asked(CODEC.tokenizer, CODEC.fast)
    counts.clear()
    with pytest.raises(ContextTooLong):
        await complete({"prompt": LONG_TEXT, **fields}, door=served(codec, context=None))
    with pytest.raises(ContextTooLong):
        InputEncoder(codec).text(LONG_TEXT)
    assert counts == [MOST_TOKENS] * 2


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_is_pooled_is_one_end_of_the_whole_text(
    side: str, heard: Listening, codec: TextCodec, whole: tuple[int, ...]
) -> None:
    encoder = InputEncoder(codec, most=9, side=side)
    kept = whole[-9:] if side == "left" else whole[:9]
    assert encoder.text(LONG_TEXT).tokens == kept
    assert encoder.pair("the", LONG_TEXT).tokens[-5:] == (
        kept[-5:] if side == "left" else (*CODEC.encode("the"), *whole[:9])[4:9]
    )
    assert 0 < heard.longest < LONG


def test_a_first_text_that_leaves_no_room_is_refused_before_it_takes_memory(
    heard: Listening, codec: TextCodec
) -> None:
    with pytest.raises(BadRequest, match="leaves no room"):
        InputEncoder(codec, most=9).pair(LONG_TEXT, "the")
    assert 0 < heard.longest < LONG


async def test_a_long_text_without_any_place_to_cut_it_at_is_refused() -> None:
    """Where nobody can say what its end becomes, but by encoding all of it."""
    pieces = Tokenizer(models.Unigram([("<unk>", 0.0), ("x", -1.0), ("xx", -1.5)], unk_id=0))
    door = replace(served(), codec=TextCodec(CODEC.tokenizer, pieces))
    fields = {"prompt": "x" * (LONG + 1), "truncate_prompt_tokens": 5}
    with pytest.raises(BadRequest, match="cannot be truncated") as refused:
        await complete(fields, door=door)
    assert refused.value.param == "truncate_prompt_tokens"


async def test_no_thread_asks_for_the_context_as_nodes_may_come_meanwhile() -> None:
    threads, texts = list[int](), ["the cat " * 20] * 20

    def context() -> int:
        threads.append(threading.get_ident())
        return CONTEXT

    await complete({"prompt": texts}, door=replace(served(), max_model_len=context))
    pools = PoolingRequestParser(replace(serving(EMBEDS), max_model_len=context))
    await pools.texts(PoolingBody(), texts, "outer")
    await pools.pairs(PoolingBody(), [("the", one) for one in texts], "outer")
    assert sum(map(len, texts)) > INLINE_SIZE
    assert set(threads) == {threading.get_ident()}
