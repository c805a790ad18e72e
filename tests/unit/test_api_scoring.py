"""How alike two texts are, by their embeddings or by a model that reads both."""

from math import sqrt

import pytest

from tests.fakes.embedder import CROSS, EMBEDS, FakeEmbedder, bracketed
from tests.fakes.http import Json
from tests.fakes.pooling_door import client, param

CODEC = bracketed()


async def test_scores_of_embeddings_are_cosines() -> None:
    turns = {"the": [1.0, 0.0], "cat": [1.0, 1.0], "dog": [0.0, -2.0], "sat": [0.0, 0.0]}
    by_prompt = {CODEC.encode(text): vector for text, vector in turns.items()}
    embedder = FakeEmbedder(lambda request: by_prompt[request.prompt])
    said = await client(embedder).post(
        "/score", text_1="the", text_2=["cat", "dog", "the", "sat"]
    )
    scores = [one["score"] for one in said.json["data"]]
    assert scores == pytest.approx([1 / sqrt(2), 0, 1, 0])
    assert len(embedder.asked) == 4  # the same text is read once
    said = await client(embedder).post(
        "/v1/score", queries=["the", "cat"], documents=["cat", "the"]
    )
    assert [one["score"] for one in said.json["data"]] == pytest.approx([1 / sqrt(2)] * 2)


async def test_a_cross_encoder_reads_both_texts_at_once() -> None:
    embedder = FakeEmbedder(lambda request: [len(request.prompt) / 64])
    said = await client(embedder, CROSS).post("/score", text_1="the", text_2=["cat", "the dog"])
    pairs = [CODEC.fast.encode("the", other) for other in ("cat", "the dog")]  # type: ignore[union-attr]
    assert [one.prompt for one in embedder.asked] == [tuple(pair.ids) for pair in pairs]
    assert [one.token_types for one in embedder.asked] == [tuple(one.type_ids) for one in pairs]
    assert {one.task for one in embedder.asked} == {"classify"}
    scores = [one["score"] for one in said.json["data"]]
    assert scores == [len(pair.ids) / 64 for pair in pairs]


async def test_of_a_pair_that_is_too_long_the_second_is_cut() -> None:
    embedder = FakeEmbedder(lambda request: [0.5])
    door, long = client(embedder, CROSS), "the cat sat on the mat " * 20
    fields: Json = {"text_1": "the", "text_2": long}
    said = await door.post("/score", **fields)
    assert param(said) is None  # either text may be the long one
    assert "maximum context length is 50 tokens" in said.json["error"]["message"]
    assert (await door.post("/score", truncate_prompt_tokens=20, **fields)).status == 200
    whole = CODEC.fast.encode("the", long).ids  # type: ignore[union-attr]
    assert embedder.asked.pop().prompt == (*whole[:19], whole[-1])
    swapped: Json = {"text_1": long, "text_2": "the", "truncate_prompt_tokens": 20}
    assert param(await door.post("/score", **swapped)) == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    "fields",
    [
        {"text_1": "x"},
        {"text_1": "x", "text_2": []},
        {"text_1": ["x", "y"], "text_2": ["x", "y", "z"]},
        {"text_1": "x", "queries": "y", "text_2": "z"},
        {"text_1": [[1]], "text_2": "z"},
        {"text_1": "x", "text_2": ["y"] * 2049},
    ],
)
async def test_texts_that_make_no_pairs_are_refused(fields: Json) -> None:
    for facts in (EMBEDS, CROSS):
        assert param(await client(facts=facts).post("/score", **fields)) is not None


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_the_best_documents_come_first(path: str) -> None:
    embedder = FakeEmbedder(lambda request: [len(request.prompt) / 64])
    documents = ["a", "the cat sat on the sea", "b c"]
    door = client(embedder, CROSS)
    said = await door.post(path, query="the", documents=documents, top_n=2)
    results = said.json["results"]
    assert [(one["index"], one["document"]["text"]) for one in results] == [
        (1, documents[1]),
        (2, documents[2]),
    ]
    assert results[0]["relevance_score"] > results[1]["relevance_score"]
    assert "data" not in said.json
    said = await door.post(path, query="the", documents=documents, return_documents=False)
    assert [set(one) for one in said.json["results"]] == [{"index", "relevance_score"}] * 3


@pytest.mark.parametrize("documents", [[], ["x"] * 2049])
async def test_documents_that_make_no_ranking_are_refused_by_their_name(
    documents: list[str],
) -> None:
    assert param(await client().post("/rerank", query="x", documents=documents)) == "documents"
