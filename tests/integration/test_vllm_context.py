"""How long a request may be where nodes of vLLM tell of no context: an operator can say it, and
else what is too long is refused by the node, in its own words.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from discovery.registration import Role
from tests.fakes.cluster import Cluster
from tests.fakes.http import Json
from tests.fakes.http_cluster import ADMIN, HttpCluster, http_cluster
from tests.fakes.vllm_cluster import PROMPT, golden, pair
from tests.fakes.vllm_node import Network, VllmNode, vllm_nodes
from tests.fakes.waiting import comes_true

CONTEXT = len(PROMPT) + 8
LONG = [*PROMPT, 4, 9, *PROMPT, *PROMPT]
KEY = {"X-API-Key": ADMIN}
KINDS = {Role.PREFILL: "prefill", Role.DECODE: "decode"}


@asynccontextmanager
async def added(*nodes: VllmNode, **told: object) -> AsyncGenerator[HttpCluster]:
    """By hand, to a proxy that is told of no model."""
    async with vllm_nodes(*nodes), http_cluster(Cluster(0, 0), parcels={}) as proxy:
        for node in nodes:
            body = {"type": KINDS[node.role], "instance": node.address, **told}
            assert (await proxy.post("/instances/add", body, **KEY))[0] == 200
        yield proxy


async def complete(proxy: HttpCluster, **more: object) -> tuple[int, Json]:
    body = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    status, data = await proxy.post("/v1/completions", {**body, **more})
    return status, msgspec.json.decode(data)


@pytest.mark.parametrize("token_endpoint", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_what_is_too_long_is_refused_in_the_nodes_words_and_nobody_is_blamed(
    token_endpoint: bool, stream: bool
) -> None:
    nodes = pair(token_endpoint=token_endpoint, context=CONTEXT)
    async with added(*nodes) as proxy:
        for cut in ({}, {"truncate_prompt_tokens": -1}):
            status, said = await complete(proxy, prompt=LONG, stream=stream, **cut)
            assert status == 400
            assert said["error"]["message"] == (
                f"This model's maximum context length is {CONTEXT} tokens."
            )
        assert sum(len(node.calls) for node in nodes) == 2
        assert not proxy.health.failures


async def test_what_fits_is_answered_though_nobody_knows_the_context() -> None:
    nodes = pair(context=CONTEXT)
    async with added(*nodes) as proxy:
        for prompt, most in ((PROMPT, -1), (LONG, len(PROMPT))):
            cut = {"prompt": prompt, "truncate_prompt_tokens": most}
            status, said = await complete(proxy, **cut)
            assert (status, said["choices"][0]["token_ids"]) == (200, golden())


async def test_an_operator_says_what_a_node_does_not() -> None:
    nodes = pair(context=CONTEXT)
    async with added(*nodes, max_model_len=CONTEXT) as proxy:
        status, said = await complete(proxy, prompt=LONG)
        assert (status, said["error"]["code"]) == (400, "context_length_exceeded")
        assert not any(node.calls for node in nodes)
        status, said = await complete(proxy, prompt=LONG, truncate_prompt_tokens=-1)
        assert (status, said["usage"]["prompt_tokens"]) == (200, CONTEXT - 6)


async def test_sglangs_words_for_a_node_have_it_too() -> None:
    nodes = pair(context=CONTEXT)
    async with vllm_nodes(*nodes), http_cluster(Cluster(0, 0), parcels={}) as proxy:
        for node in nodes:
            body = {"worker_type": KINDS[node.role], "url": f"http://{node.address}"}
            told = {**body, "max_model_len": CONTEXT}
            assert (await proxy.post("/workers", told, **KEY))[0] == 202
        status, said = await complete(proxy, prompt=LONG)
        assert (status, said["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("wrong", [0, -1, "many", 1.5])
async def test_what_is_no_length_is_refused_by_name(wrong: object) -> None:
    async with http_cluster(Cluster(0, 0)) as proxy:
        body = {"type": "decode", "instance": "h:1", "max_model_len": wrong}
        status, data = await proxy.post("/instances/add", body, **KEY)
        assert (status, msgspec.json.decode(data)["error"]["param"]) == (400, "max_model_len")


async def test_what_an_operator_said_at_one_worker_counts_at_another() -> None:
    decode = VllmNode(Role.DECODE, Network(), context=CONTEXT)
    async with vllm_nodes(decode), http_cluster(Cluster(0, 0), parcels={}) as proxy:
        told = msgspec.structs.replace(decode.registration, model="m", max_model_len=CONTEXT)
        proxy.instances.peers.update_handlers["instance"](
            decode.address, msgspec.msgpack.encode(told)
        )
        first = proxy.registry.at(decode.address)
        assert first is not None
        before = first.heard_at
        await comes_true(lambda: first.heard_at != before)  # it is asked here, too
        assert first.registration.max_model_len == CONTEXT


async def test_a_nodes_own_word_goes_before_the_operators() -> None:
    nodes = pair(context=CONTEXT, told_context=CONTEXT)
    async with added(*nodes, max_model_len=10_000) as proxy:
        status, said = await complete(proxy, prompt=LONG)
        assert (status, said["error"]["code"]) == (400, "context_length_exceeded")
        assert not any(node.calls for node in nodes)
