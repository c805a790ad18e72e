"""Messages behind other doors: of several models, and before nodes of vLLM."""

import asyncio
import json

import pytest

from tests.fakes.http import Json
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.messages import COUNT, PATH, checked, events_of, message_of
from tests.fakes.vllm_cluster import behind, pair
from tests.fakes.vllm_node import Connector
from tests.integration.test_models import parcels, two_models

HI = [{"role": "user", "content": "which way?"}]
PATIENCE_S = 60


async def ask(proxy: HttpCluster, *, stream: bool = False, **fields: object) -> Json:
    body = {"messages": HI, "max_tokens": 6, "temperature": 0, "stream": stream, **fields}
    async with asyncio.timeout(PATIENCE_S):
        status, data = await proxy.post(PATH, body)
    assert status == 200, data
    return message_of(events_of(data.decode())) if stream else checked(json.loads(data))


async def test_each_model_answers_under_its_names() -> None:
    async with http_cluster(two_models(), parcels=parcels(), recovery_wait_s=10) as proxy:
        counts = dict[str, int]()
        for name in ("nick", "b"):
            message = await ask(proxy, model=name)
            usage = message["usage"]
            counts[name] = usage["input_tokens"] + usage["cache_read_input_tokens"]
            assert message["model"] == name
            _, data = await proxy.post(COUNT, {"model": name, "messages": HI})
            assert json.loads(data) == {"input_tokens": counts[name]}
        assert counts["nick"] > counts["b"]  # its template writes marks
        status, data = await proxy.post(PATH, {"messages": HI, "max_tokens": 6})
        assert (status, json.loads(data)["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize("token_endpoint", [True, False])
async def test_nodes_of_vllm_say_in_messages_what_they_say_in_chats(
    *, token_endpoint: bool
) -> None:
    prefill, decode = pair(Connector.PULL, token_endpoint=token_endpoint)
    async with behind(prefill, decode) as proxy:
        asked = {"messages": HI, "max_tokens": 6, "temperature": 0}
        _, data = await proxy.post("/v1/chat/completions", asked)
        expected = json.loads(data)["choices"][0]["message"]["content"]
        for stream in (False, True):
            message = await ask(proxy, stream=stream)
            assert "".join(block["text"] for block in message["content"]) == expected
            assert message["stop_reason"] == "max_tokens"
        assert prefill.calls
        assert decode.calls
