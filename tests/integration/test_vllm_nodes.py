"""Nodes of vLLM behind the proxy, over real HTTP: fakes that refuse what they do not know."""

import asyncio
import time
from typing import Any

import msgspec
import pytest

from discovery.registration import Registration, Role
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import CONTEXT, http_cluster
from tests.fakes.vllm_cluster import (
    CALM,
    PATIENCE_S,
    PROMPT,
    ask,
    behind,
    golden,
    pair,
    tokens_of,
)
from tests.fakes.vllm_node import HOST, Connector, Network, VllmNode, vllm_nodes

P, D = Role.PREFILL, Role.DECODE
PULL, PUSH, MOONCAKE = Connector
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"


@pytest.mark.parametrize("connector", Connector)
@pytest.mark.parametrize("token_endpoint", [True, False])
async def test_every_way_of_vllm_gives_the_tokens_of_one_engine(
    connector: Connector, token_endpoint: bool
) -> None:
    prefill, decode = pair(connector, token_endpoint=token_endpoint)
    async with behind(prefill, decode) as proxy:
        for _ in range(3):
            said = await ask(proxy)
            assert tokens_of(said) == golden()
            assert said["choices"][0]["finish_reason"] == "length"
        path = GENERATE if token_endpoint else COMPLETIONS
        assert [one.path for one in prefill.calls + decode.calls] == [path] * 6
        assert not prefill.network.offered


async def test_pull_asks_decode_when_prefill_has_answered_with_its_words_and_one_id() -> None:
    prefill, decode = pair()
    prefill.go.clear()
    async with behind(prefill, decode) as proxy:
        asking = asyncio.create_task(ask(proxy))
        await prefill.begun.wait()
        assert not decode.calls
        prefill.go.set()
        await asking
    first, second = prefill.calls[0], decode.calls[0]
    assert first.name == second.name
    assert second.params["remote_request_id"] == f"cmpl-{first.name}-0-1a2b3c4d"
    assert second.params["remote_blocks_expiry_time"] is None  # relayed word for word
    assert second.params["remote_registration_generation"] == 1


@pytest.mark.parametrize("off_status", [403, 404, 405])
async def test_a_node_that_has_no_token_endpoint_is_asked_for_it_once(off_status: int) -> None:
    """Whether it is off, or of a version that has none."""
    prefill, decode = pair(token_endpoint=False, off_status=off_status)
    async with behind(prefill, decode) as proxy:
        await ask(proxy)
        known = proxy.door.pipeline.client.vllm_nodes  # type: ignore[attr-defined]
        nodes = proxy.registry.all()
        assert not any(known.generates(node) for node in nodes)
        assert len(nodes) == 2


@pytest.mark.parametrize("token_endpoint", [True, False])
async def test_the_clients_trace_goes_on_at_both(*, token_endpoint: bool) -> None:
    prefill, decode = pair(token_endpoint=token_endpoint)
    async with behind(prefill, decode) as proxy:
        body = {"prompt": PROMPT, **CALM}
        status, _ = await proxy.post("/v1/completions", body, traceparent=PARENT)
    assert status == 200
    heard = [one.headers["traceparent"] for one in prefill.calls + decode.calls]
    assert heard == [PARENT] * 2


LIMITS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 6},
    {"max_completion_tokens": 6},
    {"max_tokens": 6, "max_completion_tokens": 6, "min_tokens": 6},
]


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("token_endpoint", [True, False])
async def test_a_chat_is_one_token_at_prefill_and_as_long_as_asked_at_decode(
    limits: dict[str, Any], stream: bool, token_endpoint: bool
) -> None:
    """Under whichever name it is asked for, or none (production-stack#747, llm-d-router#403).

    The fake refuses a prefill leg that is longer or streamed, and all fields it does not know.
    """
    prefill, decode = pair(token_endpoint=token_endpoint)
    async with behind(prefill, decode) as proxy:
        said = [{"role": "user", "content": "the cat"}]
        chat = {"messages": said, "temperature": 0, "stream": stream, **limits}
        status, data = await proxy.post("/v1/chat/completions", chat)
    assert status == 200, data
    asked = [
        one.body if "prompt" in one.body else one.body["sampling_params"]
        for one in (*prefill.calls, *decode.calls)
    ]
    room = CONTEXT - len(decode.calls[0].body["prompt" if not token_endpoint else "token_ids"])
    assert [one["max_tokens"] for one in asked] == [1, 6 if limits else room]
    assert [one.body["stream"] for one in (*prefill.calls, *decode.calls)] == [False, True]


async def test_push_asks_both_at_once_from_the_second_request_on() -> None:
    prefill, decode = pair(PUSH)
    async with behind(prefill, decode) as proxy:
        await ask(proxy)
        prefill.go.clear()
        decode.begun.clear()
        asking = asyncio.create_task(ask(proxy))
        async with asyncio.timeout(PATIENCE_S):
            await decode.begun.wait()  # while prefill is silent
        prefill.go.set()
        assert tokens_of(await asking) == golden()
    second = decode.calls[1]
    assert second.params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "engine-1",
        "remote_host": HOST,
        "remote_port": 5600,
        "tp_size": 1,
        "pp_size": 1,
        "remote_request_id": second.name,
    }
    assert prefill.calls[1].name == second.name


async def test_a_pushing_node_that_was_started_anew_costs_another_try_and_no_wrong_token() -> (
    None
):
    prefill, decode = pair(PUSH)
    async with behind(prefill, decode) as proxy:
        await ask(proxy)
        prefill.engine = "engine-2"
        assert tokens_of(await ask(proxy)) == golden()
        for _ in range(2):
            assert tokens_of(await ask(proxy)) == golden()
            assert decode.calls[-1].params["remote_engine_id"] == "engine-2"
        assert "remote_block_ids" not in decode.calls[-1].params  # at once again


async def test_mooncake_is_joined_by_a_transfer_id_and_its_bootstrap_server() -> None:
    prefill, decode = pair(MOONCAKE)
    prefill.go.clear()
    async with behind(prefill, decode) as proxy:
        asking = asyncio.create_task(ask(proxy))
        async with asyncio.timeout(PATIENCE_S):
            await decode.begun.wait()
        prefill.go.set()
        await asking
        await ask(proxy)
    assert prefill.queries == 1
    name = prefill.calls[0].name
    assert decode.calls[0].params == {
        "do_remote_decode": False,
        "do_remote_prefill": True,
        "remote_bootstrap_addr": f"http://127.0.0.1:{prefill.bootstrap_port}",
        "remote_engine_id": "engine-1",
        "transfer_id": f"xfer-{name}",
    }
    assert prefill.calls[0].headers["x-data-parallel-rank"] == "0"
    assert "x-data-parallel-rank" not in decode.calls[0].headers


async def test_a_mooncake_node_whose_engine_is_not_known_any_more_is_asked_anew() -> None:
    prefill, decode = pair(MOONCAKE)
    async with behind(prefill, decode) as proxy:
        await ask(proxy)
        decode.fails = 1
        assert tokens_of(await ask(proxy)) == golden()
        assert prefill.queries == 2


@pytest.mark.parametrize("connector", Connector)
async def test_a_pair_that_failed_is_tried_again_from_the_prompt_on(
    connector: Connector,
) -> None:
    prefill, decode = pair(connector)
    decode.fails = 1
    async with behind(prefill, decode) as proxy:
        assert tokens_of(await ask(proxy)) == golden()
        assert (
            len({one.name for one in prefill.calls}) == 2
        )  # each attempt has an id of its own


async def test_a_prefill_node_that_works_again_is_trusted_again() -> None:
    """Its legs bring no token, so their end has to count."""
    prefill, decode = pair()
    async with behind(prefill, decode) as proxy:
        for _ in range(3):
            prefill.fails = 1
            await ask(proxy)
            await ask(proxy)
        (node,) = proxy.registry.nodes(P, now=time.monotonic())
        assert proxy.health.state(node, now=time.monotonic()).name == "CLOSED"


async def test_ours_and_vllms_are_never_paired_and_told_why() -> None:
    decode = VllmNode(D, Network())
    async with vllm_nodes(decode), http_cluster(Cluster(1, 0)) as proxy:
        node = proxy.registry.apply(decode.registration, now=time.monotonic())
        assert node is not None
        (ours,) = proxy.registry.nodes(P, now=time.monotonic())
        assert not proxy.registry.partners(node, now=time.monotonic())
        at = ours.registration.http_address
        why = f"it is vLLM here and pdserve on {at}: KV stays with nodes of one make"
        assert proxy.registry.misfit(node) == why
        assert tokens_of(await ask(proxy)) == golden()  # by decode alone


async def test_nodes_of_no_name_are_not_paired_across_makes_either() -> None:
    async with http_cluster(Cluster(0, 0)) as proxy:
        now = time.monotonic()
        like = proxy.registry.apply(Registration(P, "p:9", "p:8"), now=now)
        theirs = proxy.registry.apply(Registration(D, "d:1", "d:2"), now=now)
        assert theirs is not None
        assert proxy.registry.partners(theirs, now=now) == (like,)
        proxy.registry.apply(Registration(P, "p:1", "p:2", "p0"), now=now)
        assert proxy.registry.partners(theirs, now=now) == (like,)


async def test_one_added_by_hand_may_have_a_bootstrap_server() -> None:
    prefill, decode = pair(MOONCAKE)
    async with vllm_nodes(prefill, decode), http_cluster(Cluster(0, 0)) as proxy:
        key = {"X-API-Key": "the admin's key"}
        body = {"type": "prefill", "instance": prefill.address}
        bad = {**body, "bootstrap_port": 70_000}
        status, data = await proxy.post("/instances/add", bad, **key)
        assert status == 400
        assert msgspec.json.decode(data)["error"]["param"] == "bootstrap_port"
        good = {**body, "bootstrap_port": prefill.bootstrap_port}
        assert (await proxy.post("/instances/add", good, **key))[0] == 200
        body = {"type": "decode", "instance": decode.address}
        assert (await proxy.post("/instances/add", body, **key))[0] == 200
        assert tokens_of(await ask(proxy)) == golden()
        assert prefill.queries == 1
