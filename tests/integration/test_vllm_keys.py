"""Nodes of vLLM that want a key get one, and where they do not the error says what to do."""

import msgspec
import pytest

from discovery.registration import Role
from discovery.signed_calls import SIGNATURE
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import ADMIN, http_cluster
from tests.fakes.vllm_cluster import CALM, PROMPT, ask, behind, golden, pair, tokens_of
from tests.fakes.vllm_node import Connector, vllm_nodes

KEY = "sk-vllm"


@pytest.mark.parametrize("token_endpoint", [True, False])
@pytest.mark.parametrize("connector", Connector)
async def test_a_node_that_wants_a_key_is_driven_with_it(
    connector: Connector, token_endpoint: bool
) -> None:
    prefill, decode = pair(connector, token_endpoint=token_endpoint, key=KEY)
    async with behind(prefill, decode, foreign_key=KEY) as proxy:
        for _ in range(2):
            assert tokens_of(await ask(proxy)) == golden()
    assert {one.headers["authorization"] for one in prefill.calls} == {f"Bearer {KEY}"}


async def test_a_node_that_wants_a_key_is_added_by_hand_with_it() -> None:
    """It is asked for its models, which are behind the key."""
    (node, _), admin = pair(key=KEY), {"X-API-Key": ADMIN}
    for foreign_key, status in ((None, 400), ("another", 400), (KEY, 200)):
        proxies = http_cluster(Cluster(0, 0), foreign_key=foreign_key)
        async with vllm_nodes(node), proxies as proxy:
            body = {"type": "prefill", "instance": node.address}
            assert (await proxy.post("/instances/add", body, **admin))[0] == status


async def test_without_its_key_the_error_says_what_is_missing_and_is_no_clients_fault() -> None:
    prefill, decode = pair(key=KEY)
    async with behind(prefill, decode) as proxy:
        body = {"prompt": PROMPT, **CALM}
        status, data = await proxy.post("/v1/completions", body)
        assert status == 502
        assert "--foreign-api-key" in msgspec.json.decode(data)["error"]["message"]


async def test_a_clients_key_is_passed_on_to_no_node() -> None:
    prefill, decode = pair()
    async with behind(prefill, decode) as proxy:
        body = {"prompt": PROMPT, **CALM}
        headers = {"Authorization": "Bearer sk-client"}
        assert (await proxy.post("/v1/completions", body, **headers))[0] == 200
    for one in prefill.calls + decode.calls:
        assert not {"authorization", SIGNATURE.lower()} & one.headers.keys()
    assert {one.role for one in (prefill, decode)} == set(Role)
