"""Embedding and classifying clusters of real processes, asked by OpenAI's own client."""

import asyncio
import os
import signal
from pathlib import Path

import openai
import pytest
import torch

from tests.e2e.cluster import MODEL, Running, running
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import prompt
from tests.fakes.http import Json
from tests.fakes.pooling import hidden_states, pooled_by_hand, write_modules

PROMPTS = [list(prompt(length)) for length in (1, 17, 90, 300)]
CLASSIFIER = "AutoModelForSequenceClassification"


async def embedded(cluster: Running, inputs: list[list[int]]) -> torch.Tensor:
    """[inputs, hidden], as OpenAI's client reads them."""
    async with openai.AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none") as client:
        answer = await client.embeddings.create(model=MODEL, input=inputs)
    assert [one.index for one in answer.data] == list(range(len(inputs)))
    assert answer.usage.prompt_tokens == sum(map(len, inputs))
    return torch.tensor([one.embedding for one in answer.data])


async def post(cluster: Running, path: str, body: object) -> tuple[int, Json]:
    async with cluster.session.post(f"{cluster.url}{path}", json=body) as answer:
        return answer.status, await answer.json()


@pytest.mark.parametrize("kind", ["last", "mean"])
async def test_embeddings_beside_answers_are_those_of_transformers(
    tmp_path: Path, kind: str
) -> None:
    folder = make_checkpoint(tmp_path, "qwen3")
    write_modules(folder, kind)
    wanted = [pooled_by_hand(hidden_states(folder, tuple(one)), kind) for one in PROMPTS]
    async with running(folder, max_num_batched_tokens=64) as cluster:
        found, *_ = await asyncio.gather(
            embedded(cluster, PROMPTS * 20),
            *(cluster.complete(tuple(one), max_tokens=20) for one in PROMPTS),
        )
        await cluster.blocks_come_back()
    torch.testing.assert_close(found, torch.cat(wanted * 20), atol=1e-5, rtol=0)


async def test_prefill_nodes_alone_go_on_when_one_is_killed(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "qwen3", auto="AutoModel")
    async with running(folder, prefill=2, decode=0, max_num_batched_tokens=64) as cluster:
        first = await embedded(cluster, PROMPTS)
        asking = asyncio.create_task(embedded(cluster, PROMPTS * 500))
        while not sum((await cluster.metric("pdserve_requests_running")).values()):
            assert not asking.done(), "too quick to be seen"
            await asyncio.sleep(0)
        os.kill(cluster.engine("prefill-0"), signal.SIGKILL)
        found = await asking
        async with cluster.session.get(f"{cluster.url}/health") as answer:
            assert answer.status == 200
        status, said = await post(cluster, "/v1/completions", {"prompt": [1, 2]})
        assert (status, said["error"]["message"]) == (400, "This model does not generate text")
    torch.testing.assert_close(found, first.repeat(500, 1), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("family", "labels"), [("qwen2", 3), ("bert", 1)])
async def test_classes_and_scores_of_texts(tmp_path: Path, family: str, labels: int) -> None:
    folder = make_checkpoint(
        tmp_path, family, auto=CLASSIFIER, num_labels=labels, pad_token_id=1
    )
    async with running(folder, decode=0) as cluster:
        status, said = await post(cluster, "/classify", {"input": ["the fox", "the dog"]})
        assert (status, [one["num_classes"] for one in said["data"]]) == (200, [labels] * 2)
        assert all(one["label"].startswith("LABEL_") for one in said["data"])
        pair = {"text_1": "the fox", "text_2": ["the dog", "the fox"]}
        status, said = await post(cluster, "/score", pair)
        assert status == (200 if labels == 1 else 400)
        status, said = await post(cluster, "/v1/embeddings", {"input": "the fox"})
        assert (status, "does not support" in said["error"]["message"]) == (400, True)
