"""Two nodes, two processes each, and a proxy say what one model says: token for token."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.cluster import Running, running, stage, tokens_of
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import prompt
from tests.fakes.reference import Reference

CHUNK = 64
LENGTHS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129]
PROMPTS = [prompt(length, seed) for seed in (0, 1) for length in LENGTHS]
ANSWER = 12
FAMILIES = [
    "llama",
    "mistral",
    "qwen3",
    "qwen3_next",
    "nemotron_h",
    "falcon_h1",
    "lfm2",
    "gemma3_text",
    "gemma4_text",
    "gemma4",
    "gpt_oss",
    "deepseek_v3",
]  # tests/integration/test_parity.py has all
SAMPLED = {"temperature": 1.0, "top_p": 0.9, "top_k": 50, "max_tokens": ANSWER}


@pytest.mark.parametrize("connector", ["nixl", "tcp"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_split_answers_are_those_of_transformers(
    tmp_path: Path, family: str, connector: str
) -> None:
    folder = make_checkpoint(tmp_path / family, family)
    async with running(folder, kv_connector=connector, max_num_batched_tokens=CHUNK) as cluster:
        greedy, moved = await _ask_all(cluster)
        sampled = await _sampled_split_and_whole(cluster)
        await cluster.blocks_come_back()
    reference = Reference(folder)
    assert greedy == [
        reference.greedy(asked, said) for asked, said in zip(PROMPTS, greedy, strict=True)
    ]
    assert all(len(answer) == ANSWER for answer in greedy)
    assert all(moved)
    assert sampled[0] == sampled[1]


async def _ask_all(cluster: Running) -> tuple[list[list[int]], list[int]]:
    """Every prompt has a salt of its own, so that no KV is there before it is moved."""
    answers = await asyncio.gather(
        *(
            cluster.complete(asked, max_tokens=ANSWER, cache_salt=str(number))
            for number, asked in enumerate(PROMPTS)
        )
    )
    moved = [stage(answer, "transfer")["num_bytes"] for answer in answers]
    return [tokens_of(answer) for answer in answers], moved


async def _sampled_split_and_whole(cluster: Running) -> tuple[list[list[int]], list[list[int]]]:
    """The same seeds through the proxy, and at the decode node's own door."""
    [alone] = [node for node in await cluster.nodes() if node["role"] == "decode"]
    doors = [cluster.url, f"http://{alone['http_address']}"]
    split, whole = [
        await asyncio.gather(
            *(
                cluster.ask(door, asked, seed=len(asked), cache_salt=door, **SAMPLED)
                for asked in PROMPTS
            )
        )
        for door in doors
    ]
    return [tokens_of(answer) for answer in split], [tokens_of(answer) for answer in whole]


async def test_a_next_turn_begins_where_the_state_was_copied(tmp_path: Path) -> None:
    """Of 300 tokens 288 fill blocks; the decode node has the KV of those as well."""
    folder, first = make_checkpoint(tmp_path / "hybrid", "qwen3_5_text"), prompt(300)
    async with running(folder, max_num_batched_tokens=CHUNK) as cluster:
        turns = [first, (*first, *prompt(60)), (*first, *prompt(61))]
        answers = [await cluster.complete(asked, max_tokens=ANSWER) for asked in turns]
        await cluster.blocks_come_back()
    said, reference = [tokens_of(answer) for answer in answers], Reference(folder)
    assert said == [
        reference.greedy(asked, ours) for asked, ours in zip(turns, said, strict=True)
    ]
    cached = [one["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]
    assert cached == [0, 288, 288]
    moved = [stage(answer, "transfer")["num_bytes"] for answer in answers]
    assert moved[1] < moved[0]
