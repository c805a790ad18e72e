"""Nodes that are added by hand, and what the proxy tells of them."""

import asyncio
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from discovery.registration import Role
from proxy.admin.guard import Guard
from proxy.nodes.session import PATIENCE_S
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import ADMIN, HttpCluster, http_cluster
from tests.fakes.raw_http import HANG, Step, answer, raw_server
from tests.fakes.watched import WatchedRegistry

KEY = {"X-API-Key": ADMIN}
GAP_S = 0.05
DEEP = b"[" * 100_000
VLLM = [answer(404, {}), answer(200, {"data": [{"id": "m", "max_model_len": 64}]})]


async def ask(
    proxy: HttpCluster, kind: object, instance: object, *, what: str = "add"
) -> tuple[int, str]:
    body = {"type": kind, "instance": instance}
    status, data = await proxy.post(f"/instances/{what}", body, **KEY)
    said = msgspec.json.decode(data)
    return status, said.get("message") or said["detail"]


async def status(proxy: HttpCluster) -> Any:  # noqa: ANN401  JSON
    return msgspec.json.decode((await proxy.get("/status"))[1])


async def test_ours_are_asked_who_they_are() -> None:
    async with http_cluster(Cluster(1, 1), announced=False) as proxy:
        p0, d0 = (node.registration.http_address for node in proxy.cluster.nodes.values())
        assert (await proxy.get("/health"))[0] == 503
        assert await ask(proxy, "prefill", p0) == (200, f"Added {p0} to prefill_instances.")
        assert await ask(proxy, "decode", d0) == (200, f"Added {d0} to decode_instances.")
        assert (await proxy.get("/health"))[0] == 200
        told = [(one["node_id"], one["static"]) for one in (await status(proxy))["nodes"]]
        assert told == [("d0", True), ("p0", True)]
        code, _ = await proxy.post("/v1/completions", {"prompt": "the cat", "max_tokens": 3})
        assert code == 200


async def test_it_is_not_added_twice() -> None:
    async with http_cluster(Cluster(1, 1), announced=False) as proxy:
        d0 = proxy.cluster.decodes[0].registration.http_address
        await ask(proxy, "decode", d0)
        assert await ask(proxy, "decode", d0) == (400, "Instance already exists.")


async def test_nor_when_it_announces_itself_under_another_name() -> None:
    async with http_cluster(Cluster(0, 1)) as proxy:
        port = proxy.cluster.decodes[0].registration.http_address.rpartition(":")[2]
        code, said = await ask(proxy, "decode", f"localhost:{port}")
        assert (code, said) == (400, "Instance already exists: it announces itself.")


async def test_a_host_name_will_do() -> None:
    async with http_cluster(Cluster(0, 1), announced=False) as proxy:
        port = proxy.cluster.decodes[0].registration.http_address.rpartition(":")[2]
        assert (await ask(proxy, "decode", f"localhost:{port}"))[0] == 200
        assert (await status(proxy))["decode_nodes"] == [f"localhost:{port}"]


async def test_an_ipv6_address_will_do() -> None:
    """Its colons were refused (vLLM's FastAPI proxy)."""
    async with (
        http_cluster(Cluster(0, 0)) as proxy,
        raw_server(*[[one] for one in VLLM], host="::1") as raw,
    ):
        assert (await ask(proxy, "decode", raw.address))[0] == 200
        assert [one.node_id for one in proxy.registry.all()] == [raw.address]
        assert raw.address.startswith("[::1]:")


async def test_its_own_word_on_its_kind_counts() -> None:
    async with http_cluster(Cluster(0, 1), announced=False) as proxy:
        d0 = proxy.cluster.decodes[0].registration.http_address
        assert await ask(proxy, "prefill", d0) == (400, "Instance is a decode node.")
        assert not proxy.registry.all()


async def test_a_vllm_node_is_known_by_its_model() -> None:
    async with (
        http_cluster(Cluster(0, 0)) as proxy,
        raw_server(*[[one] for one in VLLM]) as raw,
    ):
        assert (await ask(proxy, "prefill", raw.address))[0] == 200
        (node,) = proxy.registry.all()
        said = node.registration
        assert (said.type, said.model, node.ours) == (Role.PREFILL, "m", False)
        assert said.max_model_len == 64


async def test_an_answer_in_several_pieces_is_read_to_its_end() -> None:
    said = {"type": "D", "http_address": "h:1", "zmq_address": "h:2", "node_id": "d"}
    whole, gap = answer(200, said), asyncio.Event()
    script: list[Step] = [whole[:-20], gap, whole[-20:]]
    async with http_cluster(Cluster(0, 0)) as proxy, raw_server(script) as raw:
        asyncio.get_running_loop().call_later(GAP_S, gap.set)
        assert (await ask(proxy, "decode", raw.address))[0] == 200
        assert [one.node_id for one in proxy.registry.all()] == ["d"]


@pytest.mark.parametrize(
    "scripts",
    [
        [],
        [[answer(404, {})], [answer(404, {})]],
        [[answer(200, [1])], [answer(200, {"data": []})]],
        [[answer(200, {"type": "D"})], [answer(200, "what?")]],
        [[answer(200, Raw(DEEP))], [answer(200, Raw(b"\xff"))]],
        [[answer(404, {})], [answer(200, {"data": [{"id": "m", "owned_by": "pdserve"}]})]],
    ],
)
async def test_who_is_no_node_is_not_added(scripts: list[list[bytes]]) -> None:
    async with http_cluster(Cluster(0, 0)) as proxy, raw_server(*scripts) as raw:
        address = raw.address if scripts else "127.0.0.1:1"
        code, said = await ask(proxy, "decode", address)
        assert (code, said[:26]) == (400, "Instance validation failed")
        assert f"Nobody at {address} says what it is" in said
        assert not proxy.registry.all()


async def test_only_the_admin_adds() -> None:
    async with http_cluster(Cluster(0, 0)) as proxy:
        assert (await proxy.post("/instances/add", {}))[0] == 403
    async with http_cluster(Cluster(0, 0), guard=Guard()) as proxy:
        assert (await proxy.post("/instances/add", {}, **KEY))[0] == 403


async def test_what_was_added_can_be_removed() -> None:
    async with http_cluster(Cluster(0, 1), announced=False) as proxy:
        d0 = proxy.cluster.decodes[0].registration.http_address
        said = "Instance was not added here."
        assert await ask(proxy, "decode", d0, what="remove") == (400, said)
        await ask(proxy, "decode", d0)
        assert (await ask(proxy, "decode", d0, what="remove"))[0] == 200
        assert not proxy.registry.all()
        assert (await ask(proxy, "decode", d0))[0] == 200


@pytest.mark.parametrize(("kind", "left"), [("prefill", "decode"), ("decode", "prefill")])
async def test_nobody_else_is_removed(kind: str, left: str) -> None:
    """Removing a prefill node took it from the list of decode nodes (vllm#32920)."""
    async with http_cluster(Cluster(1, 1), announced=False) as proxy:
        nodes = {"prefill": proxy.cluster.prefills[0], "decode": proxy.cluster.decodes[0]}
        at = {name: node.registration.http_address for name, node in nodes.items()}
        for name, address in at.items():
            await ask(proxy, name, address)
        said = f"Instance is a {kind} node."
        assert await ask(proxy, left, at[kind], what="remove") == (400, said)
        assert (await ask(proxy, kind, at[kind], what="remove"))[0] == 200
        told = await status(proxy)
        assert (told[f"{kind}_nodes"], told[f"{left}_nodes"]) == ([], [at[left]])


async def test_it_stays_fresh_leaves_when_silent_and_comes_back() -> None:
    registry = WatchedRegistry(ttl_s=60)
    async with http_cluster(Cluster(0, 1), announced=False, registry=registry) as proxy:
        d0 = proxy.cluster.decodes[0].registration.http_address
        await ask(proxy, "decode", d0)
        before = registry.all()[0].heard_at
        await registry.until(lambda: registry.all()[0].heard_at > before)
        registry.expire(now=1e9)
        assert not registry.all()
        await registry.until(registry.all)


@pytest.mark.parametrize("path", ["/instances/{}", "/workers/{}"])
async def test_one_that_is_silent_can_be_removed_by_its_address(path: str) -> None:
    registry = WatchedRegistry(ttl_s=60)
    async with http_cluster(Cluster(0, 1), announced=False, registry=registry) as proxy:
        d0 = proxy.cluster.decodes[0].registration.http_address
        await ask(proxy, "decode", d0)
        proxy.http[0].well = False
        await registry.until(lambda: not registry.all())
        code, told = await ask(proxy, "decode", d0)
        assert (code, told[:24]) == (400, "Instance already exists:")
        assert "it is silent" in told
        url = f"http://{proxy.url}{path.format(d0)}"
        async with proxy.session.delete(url, headers=KEY) as removed:
            assert removed.ok
        said = "Instance was not added here."
        assert await ask(proxy, "decode", d0, what="remove") == (400, said)


async def test_one_whose_engine_hangs_leaves_although_its_door_answers() -> None:
    """Its /health says so: three times in a row, and two good answers bring it back."""
    registry = WatchedRegistry(ttl_s=60)
    async with http_cluster(Cluster(0, 1), announced=False, registry=registry) as proxy:
        await ask(proxy, "decode", proxy.cluster.decodes[0].registration.http_address)
        proxy.http[0].well = False
        await registry.until(lambda: not registry.all())
        assert (await proxy.get("/health"))[0] == 503
        proxy.http[0].well = True
        await registry.until(registry.all)
        assert (await proxy.get("/health"))[0] == 200


async def test_one_that_does_not_answer_keeps_no_other_from_being_asked() -> None:
    """Else those would be silent for longer than they may be."""
    registry = WatchedRegistry(ttl_s=60)
    hangs: list[list[Step]] = [[VLLM[0]], [VLLM[1]], [HANG]]
    async with (
        http_cluster(Cluster(0, 1), announced=False, registry=registry) as proxy,
        raw_server(*hangs) as raw,
    ):
        assert (await ask(proxy, "prefill", raw.address))[0] == 200
        d0 = proxy.cluster.decodes[0].registration.http_address
        await ask(proxy, "decode", d0)

        def beats() -> int:
            return sum(one.http_address == d0 for one in registry.beats)

        before = beats()
        async with asyncio.timeout(PATIENCE_S * 0.75):  # what the other has for one answer
            await registry.until(lambda: beats() >= before + 2)
        assert raw.heads[-1].startswith("GET /health")


async def test_of_two_who_add_one_node_at_once_one_is_told_that_it_exists() -> None:
    async with http_cluster(Cluster(0, 1), announced=False) as proxy:
        d0 = proxy.cluster.decodes[0].registration.http_address
        said = await asyncio.gather(*(ask(proxy, "decode", d0) for _ in range(2)))
        added = (200, f"Added {d0} to decode_instances.")
        assert sorted(said) == [added, (400, "Instance already exists.")]


async def test_one_that_was_started_anew_in_the_other_role_is_taken_in_that() -> None:
    registry = WatchedRegistry(ttl_s=60)

    def said(kind: str, name: str) -> bytes:
        about = {"type": kind, "http_address": "h:1", "zmq_address": "h:2", "node_id": name}
        return answer(200, about)

    well = answer(200, {})
    scripts = [[said("D", "first")]] + [[well], [said("P", "second")]] * 50
    async with (
        http_cluster(Cluster(0, 0), registry=registry) as proxy,
        raw_server(*scripts) as raw,
    ):
        assert (await ask(proxy, "decode", raw.address))[0] == 200
        await registry.until(lambda: registry.all()[0].role is Role.PREFILL)
        assert [one.node_id for one in registry.all()] == ["second"]
        assert (await ask(proxy, "prefill", raw.address, what="remove"))[0] == 200


async def test_errors_are_openais_everywhere() -> None:
    async with http_cluster(Cluster(0, 0), guard=Guard(("key",))) as proxy:
        for path, code in (("/v1/models", 401), ("/status", 401), ("/health", 503)):
            assert (await proxy.get(path))[0] == code
        right = {"Authorization": "Bearer key"}
        assert (await proxy.get("/v1/models", **right))[0] == 200
        code, data = await proxy.get("/nowhere", **right)
        assert code == 404
        assert msgspec.json.decode(data)["error"]["type"] == "invalid_request_error"
