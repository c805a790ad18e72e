"""Tools of other routers find what they ask for."""

from typing import Any

import pytest

from api.errors import BadRequest
from discovery.registration import Load, Registration, Role, State
from discovery.registry import Registry
from proxy.admin.shapes import healthcheck, loads, read_worker, readiness, workers
from proxy.admin.status import cluster_status
from proxy.health.health import Health

P, D = Role.PREFILL, Role.DECODE


def status(*registrations: Registration) -> dict[str, Any]:
    registry = Registry(ttl_s=5)
    for one in registrations:
        registry.apply(one, now=0)
    return cluster_status(registry, Health(registry), now=0, in_flight=0)


BUSY = Registration(P, "h:1", "h:0", "p0", "m", "f", load=Load(1, 2, 3, 4))
IDLE = Registration(D, "h:2", "h:0", "d0", "m", "f", state=State.DRAINING)
FOREIGN = Registration(D, "h:3", "", model="m")


def test_workers_are_listed_and_counted() -> None:
    told = workers(status(BUSY, IDLE)["nodes"])
    assert (told["total"], told["stats"]) == (
        2,
        {"prefill_count": 1, "decode_count": 1, "regular_count": 0},
    )
    by_url = {one["url"]: one for one in told["workers"]}
    assert by_url["http://h:1"]["id"] == "p0"
    assert by_url["http://h:1"]["worker_type"] == "prefill"
    assert [by_url[f"http://h:{i}"]["is_healthy"] for i in (1, 2)] == [True, False]
    assert [by_url[f"http://h:{i}"]["load"] for i in (1, 2)] == [3, 0]


def test_loads_are_those_that_nodes_said() -> None:
    told = loads(status(BUSY, FOREIGN)["nodes"])
    assert {one["worker"]: one["load"] for one in told["workers"]} == {
        "http://h:1": 3,
        "http://h:3": -1,
    }
    assert (told["total_workers"], told["successful"], told["failed"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("nodes", "code", "healthy"),
    [([], 503, 0), ([BUSY], 503, 1), ([BUSY, IDLE], 503, 1), ([FOREIGN], 200, 1)],
)
def test_who_cannot_be_answered_is_not_ready(
    nodes: list[Registration], code: int, healthy: int
) -> None:
    told = readiness(status(*nodes))
    assert (told[0], told[1]["healthy_workers"], told[1]["total_workers"]) == (
        code,
        healthy,
        len(nodes),
    )


def test_healthcheck_counts_kinds() -> None:
    assert healthcheck(status(BUSY, FOREIGN, IDLE)) == {
        "status": "ok",
        "prefill_instances": 1,
        "decode_instances": 2,
    }


@pytest.mark.parametrize("url", ["http://h:1", "h:1", "http://h:1/"])
def test_a_worker_is_an_instance(url: str) -> None:
    body = f'{{"url": "{url}", "worker_type": "decode", "api_key": "x", "labels": {{}}}}'
    instance = read_worker(body.encode())
    assert (instance.role, instance.address) == (D, "h:1")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"[" * 100_000, None),
        (b"{}", "url"),
        (b'{"url": 1}', "url"),
        (b'{"url": "h:1"}', "worker_type"),
        (b'{"url": "h:1", "worker_type": "regular"}', "worker_type"),
        (b'{"url": "grpc://h:1", "worker_type": "decode"}', "url"),
        (b'{"url": "http://h", "worker_type": "decode"}', "url"),
    ],
)
def test_what_is_no_worker_is_told_by_its_field(body: bytes, param: str | None) -> None:
    with pytest.raises(BadRequest) as refused:
        read_worker(body)
    assert refused.value.param == param
