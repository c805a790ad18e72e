"""Sampling over real processes: two nodes and a proxy say and tell what one node does."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Running, running
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import prompt

PROMPT = prompt(70)
ASKED: dict[str, Any] = {
    "temperature": 0.9,
    "max_tokens": 16,
    "seed": 3,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.2,
    "logit_bias": {"7": 3.0},
    "bad_words": ["the"],
    "logprobs": 3,
    "prompt_logprobs": 1,
    "n": 2,
}
FORM = {"structured_outputs": {"regex": "[a-c]{6}"}, "max_tokens": 12}


async def test_everything_asked_for_is_told_alike_by_two_nodes_and_one(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "llama")
    async with running(folder, max_num_batched_tokens=16) as cluster:
        [alone] = [node for node in await cluster.nodes() if node["role"] == "decode"]
        doors = [cluster.url, f"http://{alone['http_address']}"]
        for fields in (ASKED, {**ASKED, "echo": True}, FORM):
            one, other = [
                (await cluster.ask(door, PROMPT, cache_salt=door, **fields))["choices"]
                for door in doors
            ]
            assert _rounded(one) == pytest.approx(_rounded(other), abs=1e-3)
        await _a_stranger_asks_a_node(cluster, doors[1])
        await cluster.blocks_come_back()


async def test_the_models_defaults_hold_at_the_proxy_and_at_the_nodes(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "llama")
    own = {"temperature": 0.0, "max_new_tokens": 5}
    (folder / "generation_config.json").write_text(json.dumps(own))
    async with running(folder) as cluster:
        nodes = [f"http://{node['http_address']}" for node in await cluster.nodes()]
        said = [
            await cluster.ask(url, PROMPT, temperature=None, seed=seed)
            for url in (cluster.url, *nodes)
            for seed in (1, 2)
        ]
    answers = [answer["choices"][0]["token_ids"] for answer in said]
    assert answers == [answers[0]] * 6
    assert len(answers[0]) == 5


async def _a_stranger_asks_a_node(cluster: Running, url: str) -> None:
    """In vLLM's words, and answered in them."""
    sampling = {"max_tokens": 3, "logprobs": 2, "prompt_logprobs": 1, "temperature": 0}
    body = {"token_ids": PROMPT, "sampling_params": sampling}
    async with cluster.session.post(f"{url}/inference/v1/generate", json=body) as answer:
        said = await answer.json()
    [choice] = said["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == [
        f"token_id:{token}" for token in choice["token_ids"]
    ]
    assert [entry["top_logprobs"][0]["token"] for entry in entries] == [
        entry["token"] for entry in entries
    ]
    assert said["prompt_logprobs"][0] is None
    foretold = zip(PROMPT[1:], said["prompt_logprobs"][1:], strict=True)
    assert all(str(token) in told for token, told in foretold)


def _rounded(choices: Any) -> list[float]:  # noqa: ANN401  JSON
    """All numbers of an answer, in order; texts as their characters."""
    if isinstance(choices, dict):
        return [number for key in sorted(choices) for number in _rounded(choices[key])]
    if isinstance(choices, list):
        return [number for one in choices for number in _rounded(one)]
    if isinstance(choices, str):
        return [float(ord(character)) for character in choices]
    return [float(choices or 0)]
