"""Text through a whole cluster: the same words as the model alone would say."""

import pytest

from engine.request import Request, RequestId, Sampling
from tests.fakes.cluster import Cluster
from tests.fakes.http import Client
from tests.fakes.model import alone
from tests.fakes.node import Ill
from tests.fakes.text import byte_level, served

CODEC = byte_level()
PROMPT = "the cat sat on the mat"
MODEL = served(context=64)


def golden(sampling: Sampling) -> list[int]:
    return alone(Request(RequestId("r"), CODEC.encode(PROMPT), sampling))


def assert_clean(cluster: Cluster) -> None:
    cluster.settle(seconds=0)
    assert cluster.leaked_blocks == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("x", [0, 1])
async def test_a_completion_is_what_the_model_alone_says(x: int, stream: bool) -> None:
    cluster = Cluster(x=x)
    said = await Client(cluster.door, MODEL).complete(
        prompt=PROMPT, max_tokens=12, seed=3, stream=stream
    )
    text = said.text if stream else said.json["choices"][0]["text"]
    assert text == CODEC.decode(golden(Sampling(12, seed=3)))
    assert_clean(cluster)


async def test_every_choice_has_its_own_noise() -> None:
    cluster = Cluster(x=2, y=2)
    said = await Client(cluster.door, MODEL).complete(
        prompt=PROMPT, max_tokens=8, seed=3, n=3, return_token_ids=True
    )
    tokens = [choice["token_ids"] for choice in said.json["choices"]]
    assert tokens == [golden(Sampling(8, seed=3, sample_index=index)) for index in range(3)]
    assert len({tuple(choice) for choice in tokens}) == 3
    assert_clean(cluster)


async def test_a_stop_string_aborts_both_legs() -> None:
    tokens = golden(Sampling(30, seed=3))
    stop = CODEC.decode(tokens[3:5])
    cluster = Cluster()
    said = await Client(cluster.door, MODEL).complete(
        prompt=PROMPT, max_tokens=30, seed=3, stop=stop
    )
    assert said.json["choices"][0]["text"] == CODEC.decode(tokens).partition(stop)[0]
    assert_clean(cluster)


@pytest.mark.parametrize("tick", [2, 5, 9])
async def test_the_text_is_the_same_when_a_node_dies_under_it(tick: int) -> None:
    cluster = Cluster(y=2)
    cluster.decodes[0].script[tick] = Ill.KILL
    said = await Client(cluster.door, MODEL).complete(
        prompt=PROMPT, max_tokens=12, seed=3, stream=True
    )
    assert said.text == CODEC.decode(golden(Sampling(12, seed=3)))
    assert_clean(cluster)


async def test_without_nodes_the_client_is_told_when_to_come_back() -> None:
    said = await Client(Cluster(x=0, y=0).door, MODEL).chat(max_tokens=2)
    assert said.status == 503
    assert said.headers["retry-after"]
