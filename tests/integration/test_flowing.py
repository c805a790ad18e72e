"""Tokens that go past the pipeline: each is said once and in its place, though nodes die."""

from contextlib import aclosing
from dataclasses import dataclass, field

import pytest

from api.generator import TokenEvent
from engine.request import Request, RequestId, Sampling
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.model import alone
from tests.fakes.node import Ill
from tests.fakes.text import byte_level
from tests.integration.test_proxy import COMPLETIONS, PROMPT, body, frames

MANY = 60
REQUEST = Request(RequestId("r"), byte_level().encode(PROMPT), Sampling(MANY, seed=3))


def small() -> FakeEngine:
    return FakeEngine(chunk=4)


@dataclass
class Client:
    """Hears both, and does something to a node at its tenth tapped token."""

    proxy: HttpCluster
    name: str = ""
    ill: Ill | None = None
    refuses: int = 0  # each so manieth token
    heard: list[int] = field(default_factory=list)
    tapped: int = 0
    offered: int = 0

    def take(self, tokens: tuple[int, ...]) -> bool:
        self.offered += 1
        if self.refuses and self.offered % self.refuses == 0:
            return False
        self.heard += tokens
        self.tapped += len(tokens)
        if self.ill and self.tapped >= 10:
            ill, self.ill = self.ill, None
            self.proxy.cluster.nodes[self.name].suffer(ill)
        return True

    async def listen(self) -> None:
        stream = self.proxy.door.stream(REQUEST, tap=self)
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, TokenEvent):
                    self.heard += event.tokens


@pytest.mark.parametrize("x", [0, 2])
@pytest.mark.parametrize("refuses", [0, 1, 3])
async def test_tokens_are_heard_in_their_order(x: int, refuses: int) -> None:
    async with http_cluster(Cluster(x, 2)) as proxy:
        client = Client(proxy, refuses=refuses)
        await client.listen()
        assert client.heard == alone(REQUEST)
        assert (client.tapped > MANY / 4) == (refuses != 1)
        assert await proxy.settled() == 0


@pytest.mark.parametrize("name", ["p0", "d0"])
@pytest.mark.parametrize("ill", [Ill.KILL, Ill.CUT])
async def test_a_node_that_dies_amid_them_costs_no_token(name: str, ill: Ill) -> None:
    async with http_cluster(Cluster(2, 2, engine=small)) as proxy:
        client = Client(proxy, name, ill)
        await client.listen()
        assert client.ill is None
        assert client.heard == alone(REQUEST)
        assert await proxy.settled() == 0


async def test_what_is_tapped_is_counted_as_what_is_streamed() -> None:
    async with http_cluster(Cluster(1, 1)) as proxy:
        client = Client(proxy)
        await client.listen()
        assert client.tapped
        page = proxy.door.metrics.render().decode()
        assert f'pdserve_proxy_tokens_total{{kind="output"}} {MANY}.0' in page


async def test_a_client_reads_the_text_that_the_model_says() -> None:
    async with http_cluster(Cluster(2, 2)) as proxy:
        asked = body(stream=True, max_tokens=MANY, return_token_ids=False)
        _, data = await proxy.post(COMPLETIONS, asked)
        text = "".join(chunk["choices"][0]["text"] for chunk in frames(data))
        assert text == byte_level().decode(alone(REQUEST))
