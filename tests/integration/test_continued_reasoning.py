"""Reasoning goes on where a node that died broke it off."""

import pytest

from engine.request import Request, RequestId, Sampling
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.http_cluster import http_cluster
from tests.fakes.model import alone
from tests.fakes.node import Ill
from tests.fakes.text import halved_marks
from tests.integration import test_proxy
from tests.integration.test_reasoning import put_together, told

CHAT = "/v1/chat/completions"


def small() -> FakeEngine:
    return FakeEngine(chunk=4)


def thoughtful() -> tuple[int, str, str]:
    """A seed with which the model without weights closes its reasoning midway; what it says."""
    codec = halved_marks()
    prompt = codec.encode("<|user|>hi<|assistant|>")
    for seed in range(10_000):
        request = Request(RequestId("r"), prompt, Sampling(60, seed=seed))
        reasoning, mark, content = codec.decode(alone(request)).partition("</think>")
        if mark and 20 < len(reasoning.split()) < 40 and "nk>" not in reasoning:
            return seed, reasoning.strip(), content.lstrip()
    raise AssertionError("no seed does")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tick", [None, 3, 15, 22, 25, 28, 31, 34, 45])
async def test_reasoning_goes_on_with_another_node(tick: int | None, stream: bool) -> None:
    seed, reasoning, content = thoughtful()
    cluster = Cluster(2, 2, engine=small)
    if tick is not None:
        cluster.decodes[0].script[tick] = Ill.KILL
    asked = {"max_tokens": 60, "seed": seed, "stream": stream}
    hi = [{"role": "user", "content": "hi"}]
    parts = {"codec": halved_marks(), "reasoning_parser": "deepseek_r1"}
    async with http_cluster(cluster, **parts) as proxy:  # type: ignore[arg-type]
        status, data = await proxy.post(CHAT, {"messages": hi, **asked})
        assert status == 200
        assert cluster.decodes[0].dead == (tick is not None)
        if stream:
            assert put_together(test_proxy.frames(data)) == (reasoning, content, "length")
        else:
            [choice] = test_proxy.read(data)["choices"]
            assert told(choice["message"]) == (reasoning, content)
        assert await proxy.settled() == 0
