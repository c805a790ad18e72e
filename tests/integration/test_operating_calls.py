"""The calls of operators: who may make them, and what is no call."""

import asyncio
from typing import Any

import msgspec
import pytest

from discovery.orders import PATH, NodeOrder, to_order
from discovery.registration import Registration, Role, State, pack
from discovery.registry import Registry
from discovery.signature import sign
from proxy.admin.drain_lock import DrainLock
from proxy.admin.node_operations import Operator, UnknownInstance
from proxy.admin.routes import AdminRoutes
from proxy.nodes.instances import Instances
from proxy.nodes.orders import OrderSender
from proxy.nodes.session import open_session
from proxy.workers.api import NoPeers
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import ADMIN, http_cluster
from tests.fakes.http_node import CLUSTER_KEY
from tests.integration.test_operating_nodes import KEY, tell


@pytest.mark.parametrize("what", ["drain", "undrain", "role"])
async def test_what_is_not_known_is_404(what: str) -> None:
    async with http_cluster(Cluster(1, 1)) as proxy:
        wish = {"role": "decode"} if what == "role" else {}
        code, said = await tell(proxy, "nobody", what, **wish)
        assert (code, said["detail"]) == (404, "Instance 'nobody' is not known here.")


@pytest.mark.parametrize(
    "key", [{}, {"X-API-Key": "wrong"}, {"Authorization": f"Bearer {ADMIN}"}]
)
@pytest.mark.parametrize("what", ["drain", "undrain", "role"])
async def test_only_the_admin_operates(what: str, key: dict[str, str]) -> None:
    async with http_cluster(Cluster(1, 2)) as proxy:
        code, _ = await proxy.post(f"/instances/d0/{what}", {"role": "prefill"}, **key)
        assert code == 403
        assert proxy.http[1].identity.state is State.READY
        for path in ("/instances", "/instances/d0"):
            assert (await proxy.get(path, **key))[0] == 403


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"[" * 100_000, None),
        (b'{"role": 1}', "role"),
        (b'{"role": "both"}', "role"),
        (b"", "role"),
        (b'{"role": "decode", "force": "yes"}', "force"),
        (b'{"rolle": "decode"}', None),
    ],
)
async def test_a_wish_that_cannot_be_read_is_400(data: bytes, param: str | None) -> None:
    async with http_cluster(Cluster(1, 2)) as proxy:
        url = f"http://{proxy.url}/instances/d0/role"
        async with proxy.session.post(url, data=data, headers=KEY) as refused:
            assert refused.status == 400
            assert (await refused.json())["error"]["param"] == param


@pytest.mark.parametrize(
    ("what", "data", "reason"),
    [
        ("undrain", b"{", "Input data was truncated"),
        ("undrain", b"[]", "Expected `object`, got `array`"),
        ("undrain", b'{"force": true}', "Object contains unknown field `force`"),
        ("drain", b'{"role": "decode"}', "Object contains unknown field `role`"),
    ],
)
async def test_a_wish_that_is_not_for_this_call_is_400(
    what: str, data: bytes, reason: str
) -> None:
    async with http_cluster(Cluster(1, 2)) as proxy:
        if what == "undrain":
            await tell(proxy, "d0", "drain")
        before = proxy.http[1].identity.state
        url = f"http://{proxy.url}/instances/d0/{what}"
        async with proxy.session.post(url, data=data, headers=KEY) as refused:
            assert refused.status == 400
            assert (await refused.json())["error"]["message"] == reason
        assert proxy.http[1].identity.state is before


@pytest.mark.parametrize("what", ["drain", "role"])
async def test_of_two_that_are_told_to_leave_at_once_one_stays(what: str) -> None:
    wish = {"role": "prefill"} if what == "role" else {}
    async with http_cluster(Cluster(1, 2)) as proxy:
        said = await asyncio.gather(*(tell(proxy, name, what, **wish) for name in ("d0", "d1")))
        assert sorted(code for code, _ in said) in ([200, 409], [202, 409])
        stay = [(one.identity.role, one.identity.state) for one in proxy.http[1:]]
        assert stay.count((Role.DECODE, State.READY)) == 1


async def test_all_instances_and_each_of_them_are_shown() -> None:
    async with http_cluster(Cluster(1, 1)) as proxy:
        _, data = await proxy.get("/instances", **KEY)
        found = msgspec.json.decode(data)["instances"]
        assert [one["node_id"] for one in found] == ["d0", "p0"]
        for name in ("d0", found[0]["http_address"]):
            code, data = await proxy.get(f"/instances/{name}", **KEY)
            assert (code, msgspec.json.decode(data)["node_id"]) == (200, "d0")
        assert (await proxy.get("/instances/nobody", **KEY))[0] == 404


async def test_what_was_added_is_deleted_by_its_name_or_its_body() -> None:
    async with http_cluster(Cluster(0, 1), announced=False) as proxy:
        d0 = proxy.cluster.decodes[0].registration.http_address
        asked = {"type": "decode", "instance": d0}
        for path, json in (("/instances", asked), ("/instances/d0", None)):
            assert (await proxy.post("/instances/add", asked, **KEY))[0] == 200
            url = f"http://{proxy.url}{path}"
            async with proxy.session.delete(url, json=json, headers=KEY) as deleted:
                assert deleted.status == 200
            assert not proxy.registry.all()


async def test_who_announces_itself_is_not_deleted() -> None:
    async with http_cluster(Cluster(0, 1)) as proxy:
        url = f"http://{proxy.url}/instances/d0"
        async with proxy.session.delete(url, headers=KEY) as refused:
            assert refused.status == 400
            assert "announces itself" in (await refused.json())["detail"]


async def test_a_node_obeys_only_who_has_the_clusters_key() -> None:
    async with http_cluster(Cluster(1, 2)) as proxy:
        url = f"http://{proxy.http[1].node.registration.http_address}{PATH}"
        order = to_order(NodeOrder("d0", "stranger", State.DRAINING))
        wrong = sign(order, b"wrong", wall_time=1.0)
        for data in (b"", b"\xc1", pack(order), pack(wrong), b"x" * 5000):
            for headers, status in ((proxy.signed(PATH), 400), ({}, 401)):
                async with proxy.session.post(url, data=data, headers=headers) as refused:
                    assert refused.status == status
        assert proxy.http[1].identity.state is State.READY
        assert CLUSTER_KEY not in repr(proxy.http[1].duty)


async def test_a_node_that_leaves_while_other_workers_are_asked_is_404() -> None:
    registry, peers = Registry(), NoPeers()

    async def status() -> dict[str, Any]:
        registry.remove("d0:80")
        return {"nodes": []}

    async with open_session() as session:
        operator = Operator(registry, OrderSender(session), peers, DrainLock(registry, peers))
        routes = AdminRoutes(Instances(session, registry), operator, status)
        for show in (routes.show, routes.show_worker):
            registry.apply(Registration(Role.DECODE, "d0:80", "d0:1", "d0"), now=0.0)
            with pytest.raises(UnknownInstance):
                await show("d0")
