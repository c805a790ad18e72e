"""A cluster of real processes says of each adapter what PEFT says, even if a node dies."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import MODEL, Running, running, stage, tokens_of
from tests.e2e.streams import streamed_past_half
from tests.fakes.adapters import AdaptedReference, make_adapter, named
from tests.fakes.driver import prompt
from tests.fakes.reference import Reference

NAMES = [MODEL, "sql", "law"]
PROMPTS = [prompt(length) for length in (3, 40, 90)]
ANSWER, LONG = 12, 60


@pytest.fixture(scope="module")
def adapters(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("adapters")
    sql = make_adapter(tiny, folder / "sql", 1)
    return sql, make_adapter(tiny, folder / "law", 2, target_modules=["q_proj", "up_proj"])


@pytest.fixture(scope="module")
def references(tiny: Path, adapters: tuple[Path, ...]) -> dict[str, Reference]:
    judges = {one.name: AdaptedReference(tiny, one) for one in adapters}
    return {MODEL: Reference(tiny), **judges}


async def test_each_request_gets_its_own_adapter(
    tiny: Path, adapters: tuple[Path, ...], references: dict[str, Reference]
) -> None:
    """The same prompts for all of them, at once: one's KV is no other's."""
    async with running(tiny, lora_modules=named(*adapters), kv_checksum="full") as cluster:
        asked = [(name, tokens) for tokens in PROMPTS for name in NAMES]
        answers = await asyncio.gather(
            *(cluster.complete(tokens, model=name, max_tokens=ANSWER) for name, tokens in asked)
        )
        for (name, tokens), answer in zip(asked, answers, strict=True):
            assert tokens_of(answer) == references[name].greedy(tokens, tokens_of(answer))
            assert answer["model"] == name
            assert stage(answer, "transfer")["num_bytes"]
        for name in ("tiny-sql", "SQL"):
            body = {"model": name, "prompt": "hi"}
            async with cluster.session.post(f"{cluster.url}/v1/completions", json=body) as no:
                assert no.status == 404
        assert await parents(cluster) == {MODEL: None, "sql": MODEL, "law": MODEL}
        await cluster.blocks_come_back()


async def test_a_stream_keeps_its_adapter_when_its_node_dies(
    tiny: Path, adapters: tuple[Path, ...], references: dict[str, Reference]
) -> None:
    async with running(tiny, decode=2, lora_modules=named(*adapters)) as cluster:
        halfway = asyncio.Semaphore(0)
        answers = [
            asyncio.create_task(
                streamed_past_half(
                    cluster.session, cluster.url, PROMPTS[1], LONG, halfway, model=name
                )
            )
            for name in (*NAMES, *NAMES)
        ]
        for _ in answers:
            await halfway.acquire()
        os.kill(cluster.engine("decode-0"), signal.SIGKILL)
        for name, said in zip((*NAMES, *NAMES), await asyncio.gather(*answers), strict=True):
            assert len(said) == LONG
            assert said == references[name].greedy(PROMPTS[1], said)
        await cluster.blocks_come_back()


async def parents(cluster: Running) -> dict[str, Any]:
    """The models that are listed, and of which other each is an adapter."""
    async with cluster.session.get(f"{cluster.url}/v1/models") as listed:
        return {card["id"]: card["parent"] for card in (await listed.json())["data"]}
