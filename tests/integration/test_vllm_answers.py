"""What nodes of vLLM answer is told as ours would tell it, from either of its endpoints."""

import msgspec
import pytest

from tests.fakes.vllm_cluster import CALM, PROMPT, ask, behind, golden, pair, tokens_of


@pytest.mark.parametrize("token_endpoint", [True, False])
async def test_finish_and_stop_reasons_and_usage_are_those_of_the_node(
    token_endpoint: bool,
) -> None:
    stop = golden()[3]
    first = golden().index(stop)
    prefill, decode = pair(token_endpoint=token_endpoint, cached=2)
    async with behind(prefill, decode) as proxy:
        said = await ask(proxy, stop_token_ids=[stop])
    (choice,) = said["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert choice["token_ids"] == golden()[: first + 1]
    assert said["usage"]["prompt_tokens"] == len(PROMPT)
    assert said["usage"]["completion_tokens"] == first + 1
    assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


@pytest.mark.parametrize("token_endpoint", [True, False])
@pytest.mark.parametrize("alone_there", [True, False])
async def test_an_answer_of_one_token_is_not_said_twice(
    token_endpoint: bool, alone_there: bool
) -> None:
    prefill, decode = pair(token_endpoint=token_endpoint)
    async with behind(*([decode] if alone_there else [prefill, decode])) as proxy:
        assert tokens_of(await ask(proxy, max_tokens=1)) == golden(1)


@pytest.mark.parametrize("token_endpoint", [True, False])
async def test_log_probabilities_are_the_same_from_either_endpoint(
    token_endpoint: bool,
) -> None:
    prefill, decode = pair(token_endpoint=token_endpoint)
    async with behind(prefill, decode) as proxy:
        said = await ask(proxy, logprobs=2, return_tokens_as_token_ids=True)
    told = said["choices"][0]["logprobs"]
    at = range(len(PROMPT), len(PROMPT) + 6)
    assert told["token_logprobs"] == [-float(position) for position in at]
    for token, top in zip(golden(), told["top_logprobs"], strict=True):
        assert top[f"token_id:{(token + 1) % 50}"] == -0.125
        assert top[f"token_id:{(token + 2) % 50}"] == -0.25


@pytest.mark.parametrize("token_endpoint", [True, False])
async def test_a_token_is_not_among_the_likeliest_because_vllm_lists_it_there(
    token_endpoint: bool,
) -> None:
    prefill, decode = pair(token_endpoint=token_endpoint)
    sampling = {"max_tokens": 6, "logprobs": 2, "temperature": 0, "ignore_eos": True}
    body = {"token_ids": PROMPT, "sampling_params": sampling}
    async with behind(prefill, decode) as proxy:
        status, data = await proxy.post("/inference/v1/generate", body)
    assert status == 200, data
    told = msgspec.json.decode(data)["choices"][0]["logprobs"]["content"]
    assert [one["token_id"] for one in told] == golden()
    for one, token in zip(told, golden(), strict=True):
        likeliest = [top["token_id"] for top in one["top_logprobs"]]
        assert likeliest == [(token + 1) % 50, (token + 2) % 50]


async def test_a_prompts_log_probabilities_come_from_completions_too() -> None:
    prefill, decode = pair(token_endpoint=False)
    for nodes in ([prefill, decode], [decode]):
        async with behind(*nodes) as proxy:
            said = await ask(proxy, prompt_logprobs=1)
        told = said["choices"][0]["prompt_logprobs"]
        assert told[0] is None
        assert [set(one) for one in told[1:]] == [{str(token)} for token in PROMPT[1:]]


async def test_choices_of_one_request_have_seeds_of_their_own() -> None:
    prefill, decode = pair()
    async with behind(prefill, decode) as proxy:
        await ask(proxy, n=2, temperature=1, seed=2**63 - 2)
    seeds = {one.body["sampling_params"]["seed"] for one in decode.calls}
    assert len(seeds) == 2


async def test_what_vllm_cannot_be_told_is_refused_by_its_name() -> None:
    prefill, decode = pair()
    async with behind(prefill, decode) as proxy:
        body = {"prompt": PROMPT, "bad_words": ["x"], **CALM}
        status, data = await proxy.post("/v1/completions", body)
    assert status == 400
    assert msgspec.json.decode(data)["error"]["param"] == "bad_words"
    assert not prefill.calls
