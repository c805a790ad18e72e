"""Every sampling field means the same on two nodes as on one: tokens, and what is told."""

import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from api.text.tokenizing import load_text_codec
from tests.fakes.cluster import Cluster
from tests.fakes.driver import load, prompt
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.node import Ill

PROMPT = [*prompt(45)]
ALL: dict[str, Any] = {
    "temperature": 0.8,
    "top_p": 0.95,
    "top_k": 40,
    "min_p": 0.01,
    "presence_penalty": 0.6,
    "frequency_penalty": 0.4,
    "repetition_penalty": 1.2,
    "logit_bias": {"7": 4.0, "9": -100.0},
    "bad_words": ["the", "ing"],
    "stop_token_ids": [11],
    "min_tokens": 3,
    "logprobs": 3,
    "echo": True,
}
FIELDS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 1.5},
    "top_p": {"top_p": 0.5},
    "top_k": {"top_k": 3},
    "min_p": {"min_p": 0.2},
    "presence_penalty": {"presence_penalty": 2, "temperature": 0},
    "frequency_penalty": {"frequency_penalty": 2, "temperature": 0},
    "repetition_penalty": {"repetition_penalty": 1.8, "temperature": 0},
    "logit_bias": {"logit_bias": {"5": 50, "6": 50}},
    "allowed_token_ids": {"allowed_token_ids": [5, 6, 7]},
    "bad_words": {"bad_words": ["a", "the", "e"]},
    "stop": {"stop": ["e", "o"]},
    "stop_token_ids": {"stop_token_ids": [*range(0, 200, 3)], "min_tokens": 4},
    "ignore_eos": {"ignore_eos": True, "logit_bias": {"0": 100}},
    "logprobs": {"logprobs": 0},
    "top_logprobs": {"logprobs": 20},
    "prompt_logprobs": {"prompt_logprobs": 2},
    "echo": {"echo": True, "logprobs": 1},
    "echo alone": {"echo": True, "logprobs": 1, "max_tokens": 0},
    "truncate_prompt_tokens": {"truncate_prompt_tokens": 7, "prompt_logprobs": 0},
    "truncation_side": {"truncate_prompt_tokens": 7, "truncation_side": "right"},
    "json": {"response_format": {"type": "json_object"}, "max_tokens": 40},
    "schema": {"guided_json": {"type": "array", "items": {"type": "integer"}}},
    "regex": {"structured_outputs": {"regex": "[a-f]{5,9}[0-9]+"}, "logprobs": 1},
    "choice": {"guided_choice": ["yes, of course", "not at all"]},
    "grammar": {"structured_outputs": {"grammar": 'root ::= ("ab" | "cd")+'}},
    "n": {"n": 3, "logprobs": 2, "prompt_logprobs": 1},
    "all": ALL,
}


@asynccontextmanager
async def clusters(llama: Path, x: int = 1) -> AsyncGenerator[tuple[HttpCluster, HttpCluster]]:
    """Some prefill nodes and a decode node, and a node that does it all."""

    def engine() -> Any:  # noqa: ANN401
        return load(llama, max_num_batched_tokens=16)

    split, alone = Cluster(x=x, engine=engine), Cluster(x=0, engine=engine)
    codec = load_text_codec(llama)
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(http_cluster(one, codec=codec))
            for one in (split, alone)
        ]
        yield first, second
        assert await first.settled() == 0
        assert await second.settled() == 0


async def ask(http: HttpCluster, **fields: Any) -> Any:  # noqa: ANN401
    """The answer, without what differs by right."""
    body = {"prompt": PROMPT, "max_tokens": 24, "seed": 5, "return_token_ids": True, **fields}
    status, data = await http.post("/v1/completions", body)
    answer = json.loads(data)
    assert status == 200, answer
    if not fields.get("echo"):  # OpenAI's types know of no first token that nothing foretold
        Completion.model_validate(answer)
    del answer["id"], answer["created"]
    return answer


def same(one: Any, other: Any) -> bool:  # noqa: ANN401  JSON
    """Equal, but numbers only nearly."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == (pytest.approx(other, abs=1e-3) if isinstance(other, float) else other))


async def test_split_and_whole_say_the_same(llama: Path) -> None:
    async with clusters(llama) as (split, alone):
        plain = [(await ask(alone, temperature=heat))["choices"] for heat in (0, 1)]
        for name, fields in FIELDS.items():
            told = await ask(split, cache_salt=name, **fields)
            assert same(told, await ask(alone, cache_salt=name, **fields)), name
            if name not in ("nothing", "greedy"):
                assert told["choices"] not in plain, name  # it means something
        assert split.cluster.sinks[0].blocks_copied
        assert not split.cluster.suspects


@pytest.mark.parametrize("tick", [2, 4, 5])
async def test_a_prefill_node_that_dies_half_way_changes_nothing(
    llama: Path, tick: int
) -> None:
    async with clusters(llama, x=2) as (split, alone):
        split.cluster.prefills[0].script[tick] = Ill.KILL
        told = [await ask(split, **ALL, cache_salt=str(number)) for number in range(2)]
        assert split.cluster.prefills[0].dead
        whole = await ask(alone, **ALL)
        assert same(told, [whole, whole])


async def test_chats_are_told_the_same(llama: Path) -> None:
    body = {
        "messages": [{"role": "user", "content": "which way?"}],
        **{"max_tokens": 8, "seed": 5, "n": 2, "logprobs": True, "top_logprobs": 4},
        **{"prompt_logprobs": 1, "repetition_penalty": 1.3, "bad_words": ["the"]},
    }
    async with clusters(llama) as both:
        answers = list[Any]()
        for http in both:
            status, data = await http.post("/v1/chat/completions", body)
            answer = json.loads(data)
            assert status == 200, answer
            ChatCompletion.model_validate(answer)
            answers.append((answer["choices"], answer["prompt_logprobs"], answer["usage"]))
    assert same(list(answers[0]), list(answers[1]))
