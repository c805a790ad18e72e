"""Nodes are drained, brought back and given another role, and no client notices."""

from typing import Any

import msgspec

from discovery.node import Node
from discovery.registration import Registration, Role, State
from tests.fakes.cluster import Cluster
from tests.fakes.engine import FakeEngine
from tests.fakes.http_cluster import ADMIN, HttpCluster, http_cluster
from tests.fakes.node import Ill
from tests.fakes.raw_http import answer, raw_server
from tests.fakes.watched import WatchedRegistry
from tests.integration.test_proxy import COMPLETIONS, body, expected, frames, tokens_of

KEY = {"X-API-Key": ADMIN}
VLLM = [answer(404, {}), answer(200, {"data": [{"id": "m"}]})]
TURNS, STREAMS = 6, 8
PATIENCE_S = 60


def small() -> FakeEngine:
    return FakeEngine(chunk=4)


async def tell(
    proxy: HttpCluster, name: str, what: str, **wish: object
) -> tuple[int, dict[str, Any]]:
    status, data = await proxy.post(f"/instances/{name}/{what}", wish, **KEY)
    return status, msgspec.json.decode(data)


def state(proxy: HttpCluster, name: str) -> State:
    return known(proxy, name).state


def node(proxy: HttpCluster, name: str) -> Node:
    return next(one for one in proxy.registry.all() if one.node_id == name)


def known(proxy: HttpCluster, name: str) -> Registration:
    return node(proxy, name).registration


async def until_turned(proxy: HttpCluster, name: str, role: Role) -> None:
    registry = proxy.registry
    assert isinstance(registry, WatchedRegistry)

    def turned() -> bool:
        said = known(proxy, name)
        return said.type is role and said.state is State.READY

    await registry.until(turned)


async def test_a_drained_node_gets_nothing_until_it_is_undrained() -> None:
    async with http_cluster(Cluster(1, 2)) as proxy:
        code, said = await tell(proxy, "d0", "drain")
        assert (code, said["state"], said["in_flight"]) == (200, "draining", 0)
        d0 = proxy.cluster.nodes["d0"]
        for _ in range(4):
            assert (await proxy.post(COMPLETIONS, body()))[0] == 200
        assert d0.legs == 0
        assert (await tell(proxy, "d0", "drain"))[0] == 200  # twice is once
        code, said = await tell(proxy, "d0", "undrain")
        assert (code, said["state"]) == (200, "ready")
        for _ in range(4):
            await proxy.post(COMPLETIONS, body())
        assert d0.legs > 0


async def test_a_node_that_is_undrained_amid_a_change_says_when_it_takes_work() -> None:
    async with http_cluster(Cluster(1, 2)) as proxy:
        address = known(proxy, "d0").http_address
        assert (await tell(proxy, "d0", "undrain"))[1][
            "message"
        ] == f"{address} takes work again."
        proxy.http[1].identity.next_role = Role.PREFILL
        _, said = await tell(proxy, "d0", "undrain")
        assert (said["state"], said["wanted_role"]) == ("draining", "prefill")
        assert said["message"] == f"{address} takes work again once it is a prefill node."


async def test_draining_outlives_heartbeats_and_status_shows_it() -> None:
    async with http_cluster(Cluster(1, 2)) as proxy:
        await tell(proxy, "d0", "drain")
        for one in proxy.http:
            one.say()
        _, data = await proxy.get("/status")
        nodes = {one["node_id"]: one["state"] for one in msgspec.json.decode(data)["nodes"]}
        assert nodes == {"p0": "ready", "d0": "draining", "d1": "ready"}


async def test_what_runs_on_a_node_that_drains_goes_on_to_its_end() -> None:
    async with http_cluster(Cluster(1, 2, engine=small)) as proxy:
        url, decodes = f"http://{proxy.url}{COMPLETIONS}", proxy.cluster.decodes
        async with proxy.session.post(url, json=body(stream=True, max_tokens=150)) as streamed:
            data, busy = b"", None
            while busy is None:  # the first token may be quicker than the call to decode
                data += await streamed.content.readany()
                asked = [one.node for one in proxy.http if one.open]
                busy = next((node for node in asked if node in decodes), None)
            busy.suffer(Ill.STALL)
            code, said = await tell(proxy, busy.node_id, "drain")
            assert (code, said["in_flight"]) == (200, 1)
            busy.wake()
            data += await streamed.read()
        assert tokens_of(frames(data))[:12] == expected()
        assert len(tokens_of(frames(data))) == 150
        assert sum(one.node.legs for one in proxy.http) == 2


async def test_all_proxies_see_what_one_of_them_was_told() -> None:
    """The node says it itself, so it is in what it tells everybody."""
    async with http_cluster(Cluster(1, 2)) as proxy:
        await tell(proxy, "d0", "drain")
        assert proxy.http[1].identity.heartbeat(proxy.http[1].load).state is State.DRAINING


async def test_a_node_added_by_hand_drains_and_stays_drained() -> None:
    registry = WatchedRegistry(ttl_s=60)
    async with http_cluster(Cluster(0, 2), announced=False, registry=registry) as proxy:
        for one in proxy.http:
            asked = {"type": "decode", "instance": one.node.registration.http_address}
            assert (await proxy.post("/instances/add", asked, **KEY))[0] == 200
        await tell(proxy, "d0", "drain")
        heard_at = node(proxy, "d0").heard_at
        await registry.until(lambda: node(proxy, "d0").heard_at > heard_at)
        assert state(proxy, "d0") is State.DRAINING
        await tell(proxy, "d0", "undrain")
        assert state(proxy, "d0") is State.READY


async def test_a_node_added_by_hand_changes_its_role() -> None:
    registry = WatchedRegistry(ttl_s=60)
    async with http_cluster(Cluster(1, 1), announced=False, registry=registry) as proxy:
        for one, kind in zip(proxy.http, ("prefill", "decode"), strict=True):
            asked = {"type": kind, "instance": one.node.registration.http_address}
            assert (await proxy.post("/instances/add", asked, **KEY))[0] == 200
        code, said = await tell(proxy, "p0", "role", role="decode")
        assert (code, said["wanted_role"]) == (202, "decode")
        await until_turned(proxy, "p0", Role.DECODE)
        assert (await proxy.post(COMPLETIONS, body()))[0] == 200


async def test_a_node_of_vllm_is_held_by_this_proxy() -> None:
    registry = WatchedRegistry(ttl_s=60)
    probed = [[one] for one in VLLM] * 50
    async with (
        http_cluster(Cluster(0, 1), registry=registry) as proxy,
        raw_server(*probed) as raw,
    ):
        asked = {"type": "decode", "instance": raw.address}
        await proxy.post("/instances/add", asked, **KEY)
        code, said = await tell(proxy, raw.address, "drain", force=True)
        assert (code, said["state"], said["in_flight"]) == (200, "draining", None)
        heard_at = node(proxy, raw.address).heard_at
        await registry.until(lambda: node(proxy, raw.address).heard_at > heard_at)
        assert state(proxy, raw.address) is State.DRAINING
        await tell(proxy, raw.address, "undrain")
        assert state(proxy, raw.address) is State.READY
        code, said = await tell(proxy, raw.address, "role", role="prefill")
        assert (code, said["error"]["param"]) == (400, "instance")


async def test_the_last_decode_node_is_kept_unless_somebody_insists() -> None:
    async with http_cluster(Cluster(1, 1)) as proxy:
        for what, wish in (("drain", {}), ("role", {"role": "prefill"})):
            code, said = await tell(proxy, "d0", what, **wish)
            assert (code, "last decode node" in said["detail"]) == (409, True)
        assert state(proxy, "d0") is State.READY
        assert (await tell(proxy, "d0", "drain", force=True))[0] == 200
        assert (await proxy.get("/health"))[0] == 503


async def test_a_node_that_does_not_answer_is_told_of() -> None:
    async with http_cluster(Cluster(1, 2)) as proxy:
        said = msgspec.structs.replace(known(proxy, "d0"), http_address="127.0.0.1:1")
        proxy.registry.apply(msgspec.structs.replace(said, node_id="dead"), now=1e9)
        code, told = await tell(proxy, "dead", "drain")
        assert (code, "127.0.0.1:1" in told["detail"]) == (502, True)
