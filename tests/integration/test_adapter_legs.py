"""The adapter that a client asks for goes with its request to every node, whatever happens."""

import asyncio
from collections import deque
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request, RequestId, Sampling
from kv_transfer.local.faults import Fault, On
from proxy.errors import NodeFailed
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.model import alone
from tests.fakes.node import Ill
from tests.fakes.text import parcel_of_text

PROMPT = tuple(range(30))
TEXT = parcel_of_text()
HERE = {"adapters": ("sql",), "fingerprint": "new"}
THERE = {"adapters": ()}


def adapted() -> FakeEngine:
    engine = FakeEngine(chunk=4)
    engine.info = replace(engine.info, adapters=("sql", "law"))
    return engine


def request(adapter: str | None = "sql", name: str = "r") -> Request:
    return Request(RequestId(name), PROMPT, Sampling(8, seed=7), adapter=adapter)


def test_another_adapter_is_another_answer() -> None:
    """What the tests below stand on."""
    said = {tuple(alone(request(adapter))) for adapter in ("sql", "law", None)}
    assert len(said) == 3


@given(
    name=st.sampled_from(["p0", "p1", "d0", "d1"]),
    tick=st.integers(1, 20),
    ill=st.sampled_from([Ill.KILL, Ill.CUT]),
)
async def test_any_node_at_any_tick(name: str, tick: int, ill: Ill) -> None:
    """One prompt under several adapters: no KV of one is used for another."""
    cluster = Cluster(2, 2, engine=adapted)
    cluster.nodes[name].script[tick] = ill
    requests = [request(adapter, f"{adapter}") for adapter in ("sql", None, "law")]
    answers = await asyncio.gather(*map(cluster.ask, requests))
    assert answers == [alone(one) for one in requests]
    cluster.expire()
    assert cluster.leaked_blocks == 0


async def test_what_ran_without_it_before_is_not_used_again() -> None:
    cluster = Cluster(engine=adapted)
    for adapter in (None, "sql", None, "law", "sql"):
        assert await cluster.ask(request(adapter)) == alone(request(adapter))


async def test_who_decodes_runs_the_prompt_with_it_where_kv_is_lost() -> None:
    cluster = Cluster(engine=adapted)
    cluster.sinks[0].faults = deque([On("read", Fault.CORRUPT)] * 60)
    assert await cluster.ask(request()) == alone(request())
    assert cluster.decodes[0].loop.load_failures == {"corrupt": 1}


async def test_without_prefill_nodes_it_goes_to_who_decodes() -> None:
    assert await Cluster(0, 1, engine=adapted).ask(request()) == alone(request())


@pytest.mark.parametrize(("x", "y"), [(1, 1), (0, 1)])
async def test_a_node_that_lacks_it_answers_nothing_in_its_place(x: int, y: int) -> None:
    with pytest.raises(NodeFailed, match="there is no adapter sql") as refused:
        await Cluster(x, y).ask(request())
    assert refused.value.param == "model"


def half_upgraded() -> Cluster:
    """Two prefill and two decode nodes, one of each with the adapter."""
    cluster = Cluster(2, 2, engine=adapted)
    for name, node in cluster.nodes.items():
        said = HERE if name.endswith("1") else THERE
        node.registration = msgspec.structs.replace(node.registration, **said)
    return cluster


async def ask(proxy: HttpCluster, model: str, **more: Any) -> tuple[int, Any]:  # noqa: ANN401
    body = {"prompt": list(PROMPT), "max_tokens": 8, "seed": 7, "return_token_ids": True}
    status, data = await proxy.post("/v1/completions", {**body, "model": model, **more})
    return status, msgspec.json.decode(data)


def parcels() -> dict[str, Any]:
    return dict.fromkeys(("p0", "p1", "d0", "d1"), TEXT)


async def test_over_http_the_nodes_that_have_it_answer_every_choice() -> None:
    async with http_cluster(half_upgraded(), parcels=parcels(), recovery_wait_s=10) as proxy:
        status, said = await ask(proxy, "sql", n=2)
        assert (status, said["model"]) == (200, "sql")
        sampling = [Sampling(8, seed=7, sample_index=number) for number in range(2)]
        expected = [alone(msgspec.structs.replace(request(), sampling=s)) for s in sampling]
        assert [choice["token_ids"] for choice in said["choices"]] == expected
        legs = {name: node.legs for name, node in proxy.cluster.nodes.items()}
        assert legs == {"p0": 0, "p1": 2, "d0": 0, "d1": 2}
        for number in range(4):
            status, said = await ask(proxy, "fake", request_id=f"r{number}")
            assert (status, said["model"]) == (200, "fake")
            assert said["choices"][0]["token_ids"] == alone(request(None))


def only_where(kind: str) -> Cluster:
    """Two prefill and two decode nodes; those of one kind were started with the adapter."""
    cluster = Cluster(2, 2, engine=adapted)
    for name, node in cluster.nodes.items():
        said = HERE if name.startswith(kind) else THERE
        node.registration = msgspec.structs.replace(node.registration, **said)
    return cluster


async def test_over_http_decode_nodes_that_alone_have_it_run_its_prompts() -> None:
    """Nobody runs them without it, not even once (dynamo#11520)."""
    async with http_cluster(only_where("d"), parcels=parcels(), recovery_wait_s=10) as proxy:
        for number in range(4):
            status, said = await ask(proxy, "sql", request_id=f"r{number}")
            assert (status, said["model"]) == (200, "sql")
            assert said["choices"][0]["token_ids"] == alone(request())
        legs = {name: node.legs for name, node in proxy.cluster.nodes.items()}
        assert legs == {"p0": 0, "p1": 0, "d0": 2, "d1": 2}


async def test_over_http_what_only_prefill_nodes_have_is_not_answered_without_it() -> None:
    async with http_cluster(only_where("p"), parcels=parcels(), tries=2) as proxy:
        status, said = await ask(proxy, "sql")
        assert status == 503
        assert "no decode node" in said["error"]["message"]
        assert not any(node.legs for node in proxy.cluster.nodes.values())


async def test_over_http_it_survives_a_node_that_dies() -> None:
    cluster = half_upgraded()
    cluster.nodes["p1"].script[3] = Ill.KILL
    async with http_cluster(cluster, parcels=parcels(), recovery_wait_s=10) as proxy:
        status, said = await ask(proxy, "sql")
        assert (status, said["choices"][0]["token_ids"]) == (200, alone(request()))
        assert cluster.nodes["d1"].legs == 2  # it was asked again
        assert cluster.nodes["d0"].legs == cluster.nodes["p0"].legs == 0


async def test_over_http_its_vectors_are_refused_and_it_is_listed() -> None:
    async with http_cluster(half_upgraded(), parcels=parcels(), recovery_wait_s=10) as proxy:
        status, data = await proxy.post("/pooling", {"input": [1, 2], "model": "sql"})
        assert (status, msgspec.json.decode(data)["error"]["param"]) == (400, "model")
        told = msgspec.json.decode((await proxy.get("/v1/models"))[1])["data"]
        assert [(one["id"], one["parent"]) for one in told] == [("fake", None), ("sql", "fake")]
