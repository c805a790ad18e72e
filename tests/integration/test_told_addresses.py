"""A node that tells a wrong address of its KV costs a try, and then none any more."""

from engine.request import Request, RequestId, Sampling
from tests.fakes.cluster import KV_PORT, Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone

PROMPT = tuple(range(30))


async def test_a_prefill_node_that_tells_another_s_kv_address_is_avoided() -> None:
    """Its prompts were all run twice, without a word (vllm#27083)."""
    cluster = Cluster(2, 1, engine=lambda: FakeEngine(chunk=4))
    for node in cluster.prefills:
        node.halves[0].address = ("p0", KV_PORT)  # each is at home at 127.0.0.1
    for number in range(8):
        asked = Request(RequestId(str(number)), (number, *PROMPT), Sampling(8, seed=7))
        assert await cluster.ask(asked) == alone(asked)
    lost = [pair for pair, _ in cluster.health.unhealthy_pairs(now=cluster.now)]
    assert lost == [("p1", "d0")]
    assert cluster.decodes[0].loop.load_failures == {"unreachable": 1}
    assert cluster.suspects == []
    cluster.expire()
    assert cluster.leaked_blocks == 0
