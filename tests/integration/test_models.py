"""A proxy without model files, in front of nodes of several models that bring them."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack

import msgspec
import pytest

from api.text.tokenizing import TextCodec
from api.text_files import LARGEST, ROUTE, TextParcel
from discovery.signed_calls import SIGNATURE, CallKey, Signing
from proxy.models.fetching import HttpFetcher
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import HttpCluster, http_cluster
from tests.fakes.http_node import CLUSTER_KEY
from tests.fakes.raw_http import CUT, HANG, Step, raw_server
from tests.fakes.text import TEMPLATE, byte_level, parcel_of_text

OTHER = "{% for m in messages %}{{ m.content }}{% endfor %}"
OF_A, OF_B = parcel_of_text(), parcel_of_text(OTHER)
HI = [{"role": "user", "content": "the cat"}]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\n"


def of(cluster: Cluster, **more: Mapping[str, object]) -> Cluster:
    """Its nodes with what their registrations say, by their ids."""
    for name, said in more.items():
        node = cluster.nodes[name]
        node.registration = msgspec.structs.replace(node.registration, **said)
    return cluster


def two_models() -> Cluster:
    a, b = {"model": "a", "aliases": ("nick",)}, {"model": "b"}
    return of(Cluster(2, 2), p0=a, d0=a, p1=b, d1=b)


def parcels(**more: TextParcel) -> dict[str, TextParcel]:
    return {"p0": OF_A, "d0": OF_A, "p1": OF_B, "d1": OF_B, **more}


Answer = tuple[int, dict[str, object]]


async def chat(proxy: HttpCluster, model: str | None, **more: object) -> Answer:
    body = {"messages": HI, "max_tokens": 4, "temperature": 0, "return_token_ids": True, **more}
    if model:
        body["model"] = model
    status, data = await proxy.post("/v1/chat/completions", body)
    answer: dict[str, object] = msgspec.json.decode(data)
    return status, answer


def prompt_of(codec: TextCodec) -> list[int]:
    text = codec.render(HI, {"add_generation_prompt": True})
    return list(codec.encode(text, special_tokens=False))


async def legs(proxy: HttpCluster) -> list[str]:
    """Who was asked for anything so far."""
    return [name for name, node in proxy.cluster.nodes.items() if node.legs]


async def test_each_model_speaks_with_its_own_text_and_its_own_nodes() -> None:
    async with http_cluster(two_models(), parcels=parcels(), recovery_wait_s=10) as proxy:
        status, said = await chat(proxy, "nick")
        assert (status, said["model"], said["prompt_token_ids"]) == (
            200,
            "nick",
            prompt_of(byte_level(TEMPLATE)),
        )
        assert await legs(proxy) == ["p0", "d0"]
        status, said = await chat(proxy, "b")
        assert (status, said["prompt_token_ids"]) == (200, prompt_of(byte_level(OTHER)))
        assert await legs(proxy) == ["p0", "p1", "d0", "d1"]
        told = msgspec.json.decode((await proxy.get("/v1/models"))[1])["data"]
        assert [one["id"] for one in told] == ["a", "nick", "b"]
        models = msgspec.json.decode((await proxy.get("/status"))[1])["models"]
        assert [(one["names"], one["text"]) for one in models] == [
            (["a", "nick"], "ready"),
            (["b"], "ready"),
        ]


async def test_an_unknown_model_is_404_and_a_missing_one_400() -> None:
    async with http_cluster(two_models(), parcels=parcels()) as proxy:
        status, said = await chat(proxy, "c")
        error = said["error"]
        assert isinstance(error, dict)
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert error["message"] == "The model `c` does not exist. There are: a, b, nick"
        assert (await chat(proxy, None))[0] == 400
        assert (await proxy.get("/v1/models/c"))[0] == 404


async def test_token_ids_are_answered_before_any_text_is_there() -> None:
    """Here with nodes that never give it: text is 503 and says why, with Retry-After."""
    nothing = {name: TextParcel(b"", OF_A.digest) for name in ("p0", "d0")}
    async with http_cluster(Cluster(1, 1), parcels=nothing) as proxy:
        body = {"prompt": [1, 2, 3], "max_tokens": 4, "return_token_ids": True}
        status, data = await proxy.post("/v1/completions", body)
        (choice,) = msgspec.json.decode(data)["choices"]
        assert (status, choice["text"], len(choice["token_ids"])) == (200, "", 4)
        url = f"http://{proxy.url}/v1/completions"
        for text in ({**body, "prompt": "the"}, {**body, "return_token_ids": False}):
            async with proxy.session.post(url, json=text) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert "on their way" in (await answer.json())["error"]["message"]


async def test_a_proxy_with_another_key_is_given_nothing() -> None:
    async with http_cluster(two_models(), parcels=parcels(), key=b"wrong") as proxy:
        assert (await chat(proxy, "a"))[0] == 503
        node = proxy.cluster.nodes["p0"].registration.http_address
        url, signing = f"http://{node}{ROUTE}", Signing(CallKey.of(CLUSTER_KEY))
        for said, status in (
            ({}, 401),
            ({SIGNATURE: CallKey.of("wrong").sign("GET", ROUTE, wall_time=1e9)}, 403),
        ):
            async with proxy.session.get(url, headers=said) as answer:
                assert answer.status == status
        fetched = await HttpFetcher(proxy.session, signing).fetch(node, OF_A.digest)
        assert fetched == OF_A.data


@pytest.mark.parametrize(
    "ill",
    [
        [HEAD + b"Content-Length: 1000\r\n\r\n", OF_A.data[:100], CUT],
        [HEAD + b"Content-Length: 9\r\n\r\nnot these"],
        [HEAD + f"Content-Length: {len(OF_B.data)}\r\n\r\n".encode() + OF_B.data],
        [HEAD + b"Content-Length: 100000000\r\n\r\n", bytes(LARGEST + 1), HANG],
        [b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"],
    ],
    ids=["dies in the middle", "gives noise", "gives another model's", "gives 100 MB", "fails"],
)
async def test_another_node_gives_what_one_does_not(ill: list[Step]) -> None:
    """The ill one is a prefill node, as far as the proxy knows, and the first that is asked."""
    async with AsyncExitStack() as stack:
        raw = await stack.enter_async_context(raw_server(ill, [HANG]))
        cluster = of(Cluster(1, 1), p0={"model": "a"}, d0={"model": "a"})
        given = {"p0": OF_A, "d0": OF_A}
        wait = 10.0
        proxy = await stack.enter_async_context(
            http_cluster(cluster, parcels=given, recovery_wait_s=wait, announced=False)
        )
        first = msgspec.structs.replace(
            cluster.nodes["p0"].registration, http_address=raw.address, node_id="a first one"
        )
        proxy.registry.apply(first, now=proxy.door.pipeline.clock())
        await raw.asked.wait()
        proxy.registry.apply(cluster.nodes["d0"].registration, now=proxy.door.pipeline.clock())
        proxy.registry.remove(raw.address)
        status, _ = await chat(proxy, "a")
        assert status == 200


async def test_a_model_is_upgraded_under_its_name_and_no_request_is_lost() -> None:
    """Old and new nodes side by side, then new ones only; each request stays on one side."""
    old, new = {"model": "m", "fingerprint": "old"}, {"model": "m", "fingerprint": "new"}
    cluster = of(Cluster(2, 2), p0=old, d0=old, p1=new, d1=new)
    prompts = {
        "old": prompt_of(byte_level(TEMPLATE)),
        "new": prompt_of(byte_level(OTHER)),
    }
    async with http_cluster(cluster, parcels=parcels(), recovery_wait_s=10) as proxy:
        assert (await chat(proxy, "m"))[0] == 200
        answers = await asyncio.gather(*(chat(proxy, "m") for _ in range(24)))
        assert [status for status, _ in answers] == [200] * 24
        seen = [said["prompt_token_ids"] for _, said in answers]
        assert {tuple(one) for one in prompts.values()} == {tuple(one) for one in seen}  # type: ignore[arg-type]
        assert len(msgspec.json.decode((await proxy.get("/v1/models"))[1])["data"]) == 1
        for name in ("p0", "d0"):
            proxy.registry.remove(cluster.nodes[name].registration.http_address)
        answers = await asyncio.gather(*(chat(proxy, "m") for _ in range(8)))
        assert [status for status, _ in answers] == [200] * 8
        assert all(said["prompt_token_ids"] == prompts["new"] for _, said in answers)
        assert await proxy.settled() == 0
