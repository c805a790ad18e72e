"""What clients are answered who ask for vectors, classes and scores."""

import asyncio
from array import array
from base64 import b64decode
from math import nan
from typing import Any

import msgspec
import pytest

from api.generator import RequestRefused
from api.pooling.batches import (
    BATCHES_AT_ONCE,
    MOST_AT_ONCE,
    MOST_TOKENS_AT_ONCE,
    PoolingBatches,
    split_batches,
)
from api.pooling.bodies import PoolingItem
from api.pooling.response_items import write_items
from api.text.tokenizing import LONG
from engine.pooling.config import PoolingConfig
from engine.request import PoolingRequest, RequestId
from tests.fakes.embedder import (
    CLASSES,
    CROSS,
    EMBEDS,
    FakeEmbedder,
    bracketed,
    shape_of,
)
from tests.fakes.http import NOW, Json
from tests.fakes.pooling_door import client, param

CODEC = bracketed()
TOKENS = CODEC.encode("the cat")
LONG_TEXT = "the cat " * (LONG // 8 + 1)
FAR, COUNTED = "more than twice as many", "tokens in the input"
PATHS = ("/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score", "/rerank")


def numbers(tokens: tuple[int, ...]) -> list[float]:
    return shape_of(PoolingRequest(RequestId("x"), tokens))


async def test_an_embedding_looks_as_openai_has_it() -> None:
    said = await client().post(
        "/v1/embeddings", {"X-Request-Id": "mine-prompt-7-chunk-2"}, input="the cat", user="u"
    )
    assert said.json == {
        "id": "embd-mine-prompt-7-chunk-2",
        "object": "list",
        "created": NOW,
        "model": "tiny",
        "data": [{"index": 0, "object": "embedding", "embedding": numbers(TOKENS)}],
        "usage": {
            "prompt_tokens": len(TOKENS),
            "total_tokens": len(TOKENS),
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("the cat", [TOKENS]),
        (["the cat", "the dog"], [TOKENS, CODEC.encode("the dog")]),
        ([3, 4], [(3, 4)]),
        ([[3, 4], [5]], [(3, 4), (5,)]),
        ([[3, 4], "the cat"], [(3, 4), TOKENS]),
    ],
)
async def test_inputs_are_texts_or_tokens(given: object, prompts: list[object]) -> None:
    embedder = FakeEmbedder()
    said = await client(embedder).post("/v1/embeddings", input=given)
    assert [one["index"] for one in said.json["data"]] == list(range(len(prompts)))
    assert [one.prompt for one in embedder.asked] == prompts
    assert len({one.request_id for one in embedder.asked}) == len(prompts)


async def test_base64_is_the_same_numbers() -> None:
    said = await client().post("/v1/embeddings", input="the cat", encoding_format="base64")
    values = array("f", b64decode(said.json["data"][0]["embedding"]))
    assert values.tolist() == numbers(TOKENS)


async def test_what_is_asked_for_reaches_the_engine() -> None:
    embedder = FakeEmbedder()
    await client(embedder).post(
        "/v1/embeddings",
        input="the cat",
        dimensions=2,
        use_activation=False,
        cache_salt="s",
        priority=-3,
        add_special_tokens=False,
    )
    (asked,) = embedder.asked
    assert asked.prompt == CODEC.encode("the cat", special_tokens=False)
    assert (asked.dimensions, asked.activation) == (2, False)
    assert (asked.cache_salt, asked.priority) == ("s", -3)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", ["", "[]", "3", '{"input": 3}', '{"model": 3}', "{", "\xff"])
async def test_bodies_that_are_none_are_refused(path: str, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    said = await client().ask("POST", path, body.encode("latin-1"), headers)
    assert said.status == 400
    assert said.json["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": "", "add_special_tokens": False}, "input"),
        ({"input": [1, "x"]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": [100_000]}, "input"),
        ({"input": [-1]}, "input[0]"),
        ({"input": "x", "encoding_format": "bytes"}, "encoding_format"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "x", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "x", "truncate_prompt_tokens": 51}, "truncate_prompt_tokens"),
        ({"input": "x", "truncation_side": "middle"}, "truncation_side"),
        ({"input": "x", "messages": [{"role": "user"}]}, "messages"),
        ({"input": "x", "embed_dtype": "float16"}, "embed_dtype"),
    ],
)
async def test_refusals_name_the_field(fields: Json, at: str) -> None:
    embedder = FakeEmbedder()
    assert param(await client(embedder).post("/v1/embeddings", **fields)) == at
    assert not embedder.asked


async def test_too_long_is_refused_unless_it_may_be_cut() -> None:
    embedder = FakeEmbedder()
    text = "the cat sat on the mat " * 20
    door = client(embedder)
    said = await door.post("/v1/embeddings", input=text)
    assert param(said) == "input"
    assert "maximum context length is 50 tokens" in said.json["error"]["message"]
    whole = CODEC.encode(text)
    for fields, kept in (
        (dict[str, Any](truncate_prompt_tokens=-1), (*whole[:49], whole[-1])),
        ({"truncate_prompt_tokens": 9}, (*whole[:8], whole[-1])),
        (
            {"truncate_prompt_tokens": 9, "truncation_side": "left"},
            (whole[0], *whole[-8:]),
        ),
    ):
        assert (await door.post("/v1/embeddings", input=text, **fields)).status == 200
        assert embedder.asked.pop().prompt == kept
    await door.post("/v1/embeddings", input=[[1, 2, 3]], truncate_prompt_tokens=2)
    assert embedder.asked.pop().prompt == (1, 2)


@pytest.mark.parametrize(
    ("facts", "path", "fields", "words"),
    [
        (EMBEDS, "/v1/embeddings", {"input": LONG_TEXT}, FAR),
        (CROSS, "/score", {"text_1": "the", "text_2": LONG_TEXT}, FAR),
        (EMBEDS, "/v1/embeddings", {"input": ["the cat " * 30, LONG_TEXT]}, COUNTED),
        (CROSS, "/score", {"text_1": "the", "text_2": ["the cat " * 30, LONG_TEXT]}, COUNTED),
    ],
)
async def test_what_cannot_fit_is_refused_before_it_or_what_follows_takes_memory(
    facts: PoolingConfig, path: str, fields: Json, words: str
) -> None:
    said = await client(facts=facts).post(path, **fields)
    assert said.status == 400
    assert words in said.json["error"]["message"]


async def test_any_task_has_an_answer_of_its_own() -> None:
    said = await client().post("/pooling", input=[[3, 4]], task="token_embed")
    assert said.json["data"] == [{"index": 0, "object": "pooling", "data": [[2, 7, 3]] * 2}]
    said = await client().post("/pooling", input=[[3, 4]])
    assert said.json["data"] == [{"index": 0, "object": "pooling", "data": [2, 7, 3]}]
    assert said.json["id"].startswith("pool-")


@pytest.mark.parametrize(
    ("path", "facts", "fields"),
    [
        ("/v1/embeddings", CLASSES, {"input": "x"}),
        ("/classify", EMBEDS, {"input": "x"}),
        ("/pooling", EMBEDS, {"input": "x", "task": "classify"}),
        ("/pooling", CROSS, {"input": "x", "task": "embed"}),
        ("/score", CLASSES, {"text_1": "x", "text_2": "y"}),
        ("/rerank", CLASSES, {"query": "x", "documents": ["y"]}),
    ],
)
async def test_a_model_says_what_it_is_not_for(
    path: str, facts: PoolingConfig, fields: Json
) -> None:
    embedder = FakeEmbedder()
    said = await client(embedder, facts).post(path, **fields)
    assert said.status == 400
    assert "model" in said.json["error"]["message"]
    assert not embedder.asked


async def test_a_model_without_text_says_so() -> None:
    for send in (client(facts=CLASSES).complete, client(facts=CLASSES).chat):
        said = await send()
        assert said.status == 400
        assert "does not generate" in said.json["error"]["message"]


async def test_classes_have_names_and_probabilities() -> None:
    embedder = FakeEmbedder(lambda request: [0.25, 0.5, 0.25])
    said = await client(embedder, CLASSES).post("/classify", input=["a", "b"])
    one = {"label": "bad", "probs": [0.25, 0.5, 0.25], "num_classes": 3}
    assert said.json["data"] == [{"index": 0, **one}, {"index": 1, **one}]
    assert {one.task for one in embedder.asked} == {"classify"}


async def test_thousands_of_inputs_run_a_few_at_a_time() -> None:
    embedder = FakeEmbedder()
    said = await client(embedder).post(
        "/v1/embeddings", input=[[1, i % 250] for i in range(2000)]
    )
    assert [one["embedding"][1] for one in said.json["data"]] == [
        1 + i % 250 for i in range(2000)
    ]
    assert embedder.most == BATCHES_AT_ONCE
    assert max(embedder.batches) == MOST_AT_ONCE


def test_long_prompts_make_small_batches() -> None:
    sizes = [MOST_TOKENS_AT_ONCE, 1, MOST_TOKENS_AT_ONCE - 1, 5, MOST_TOKENS_AT_ONCE + 5, 1]
    asked = [PoolingRequest(RequestId(str(i)), (0,) * size) for i, size in enumerate(sizes)]
    batches = list(split_batches(asked))
    assert [len(batch) for batch in batches] == [1, 2, 1, 1, 1]
    assert [one for batch in batches for one in batch] == asked
    assert list(split_batches([])) == []


async def test_who_stops_waiting_takes_all_inputs_along() -> None:
    embedder = FakeEmbedder(gate=asyncio.Event())
    asked = [PoolingRequest(RequestId(str(i)), (i,)) for i in range(500)]
    asking = asyncio.create_task(PoolingBatches(embedder).run(asked))
    while embedder.running < BATCHES_AT_ONCE:  # noqa: ASYNC110
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert embedder.running == 0


async def test_one_failure_is_the_answer_and_ends_the_others() -> None:
    embedder = FakeEmbedder(gate=asyncio.Event(), failure=RequestRefused("dimensions: no"))
    said = await client(embedder).post("/v1/embeddings", input=["x"] * 500)
    assert (said.status, said.json["error"]["message"]) == (400, "dimensions: no")
    assert embedder.running == 0


async def test_what_is_no_number_is_not_told() -> None:
    said = await client(FakeEmbedder(lambda request: [1.0, nan])).post("/pooling", input="x")
    assert said.status == 500


async def test_segments_are_one_for_each_token() -> None:
    embedder = FakeEmbedder()
    fields: Json = {"input": [[1, 2]], "pdserve": {"token_types": [[0, 1]]}}
    assert (await client(embedder).post("/pooling", **fields)).status == 200
    assert embedder.asked.pop().token_types == (0, 1)
    fields["pdserve"] = {"token_types": [[0]]}
    assert param(await client(embedder).post("/pooling", **fields)) == "pdserve.token_types"


async def test_others_go_on_while_vectors_are_written() -> None:
    turns = [0]

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    said = await write_items(PoolingItem(index, embedding=[0.5]) for index in range(20))
    task.cancel()
    assert turns[0] >= 20
    assert [msgspec.json.decode(one) for one in said][19] == {"index": 19, "embedding": [0.5]}
