"""Legs at nodes of vLLM that end otherwise than both with their last token: nothing hangs."""

import asyncio
import contextlib

import pytest

from discovery.registration import Role
from tests.fakes.vllm_cluster import PATIENCE_S, ask, behind, golden, pair, tokens_of
from tests.fakes.vllm_node import Connector, VllmNode

PULL, *AT_ONCE = Connector


@pytest.mark.parametrize("connector", Connector)
async def test_a_client_that_leaves_leaves_both_nodes(connector: Connector) -> None:
    """Else prefill keeps its KV until a timer ends it (vllm#50425, llm-d#1138)."""
    prefill, decode = pair(connector)
    async with behind(prefill, decode) as proxy, asyncio.timeout(PATIENCE_S):
        await ask(proxy)  # from now on a node that pushes is asked beside the other
        asked = [prefill] if connector is PULL else [prefill, decode]
        for node in asked:
            node.begun.clear()
        prefill.go.clear()
        asking = asyncio.create_task(ask(proxy))
        for node in asked:
            await node.begun.wait()
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        for node in asked:
            await node.left.wait()
    calls = [len(node.calls) for node in (prefill, decode)]
    assert calls == [2, len(asked)], "nobody is asked for a client that has left"
    assert not prefill.network.offered


@pytest.mark.parametrize("connector", AT_ONCE)
async def test_decode_does_not_wait_for_what_prefill_failed_to_compute(
    connector: Connector,
) -> None:
    """KV that never comes, asked for all the same (sglang#31206)."""
    prefill, decode = pair(connector)
    async with behind(prefill, decode) as proxy, asyncio.timeout(PATIENCE_S / 2):
        await ask(proxy)
        prefill.fails = 1
        prefill.go.clear()
        decode.begun.clear()
        asking = asyncio.create_task(ask(proxy))
        await decode.begun.wait()
        prefill.go.set()
        assert tokens_of(await asking) == golden()
        await decode.left.wait()


@pytest.mark.parametrize("connector", Connector)
@pytest.mark.parametrize("token_endpoint", [True, False])
async def test_an_answer_that_ends_with_prefills_token_ends(
    connector: Connector, token_endpoint: bool
) -> None:
    """Such a node hands nothing over then: nobody is to wait for it (sglang#12557)."""
    prefill, decode = pair(connector, token_endpoint=token_endpoint)
    async with behind(prefill, decode) as proxy, asyncio.timeout(PATIENCE_S / 2):
        await ask(proxy)
        decode.begun.clear()
        said = await ask(proxy, stop_token_ids=golden()[:1])
        assert tokens_of(said) == golden()[:1]
        assert said["choices"][0]["finish_reason"] == "stop"
        if decode.begun.is_set():
            await decode.left.wait()
    assert len(prefill.calls) == 2
    assert not prefill.network.offered


@pytest.mark.parametrize("connector", Connector)
@pytest.mark.parametrize("role", Role)
async def test_an_empty_answer_of_status_200_is_none(connector: Connector, role: Role) -> None:
    """It went on to clients as it was (vllm-ascend#13140, vllm#52276)."""
    prefill, decode = pair(connector)
    others = (VllmNode(one, prefill.network, connector) for one in Role)
    hit = prefill if role is Role.PREFILL else decode
    async with behind(prefill, decode, *others) as proxy, asyncio.timeout(PATIENCE_S / 2):
        hit.says_nothing = 1
        for _ in range(4):  # all pairs, in turn
            assert tokens_of(await ask(proxy)) == golden()
        assert not hit.says_nothing
