"""`pdserve balance` over real HTTP: what it asks a proxy, and what it makes of the answers."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.balance import Balancer
from deploy.config import BalanceConfig
from discovery.registration import Load, Registration, Role, State
from discovery.registry import Registry
from proxy.admin.status import cluster_status
from proxy.health.health import Health
from tests.fakes.raw_http import CUT, RawServer, Step, answer, raw_server

ROOT = Path(__file__).parents[2]
MAIN = "from deploy.cli import main; main()"
P, D = Role.PREFILL, Role.DECODE
WINDOW_S = 3
IDLE, BUSY = Load(0, 0, 100, 100), Load(4, 8, 50, 100)
ORDERED = answer(202, {"message": "p:2 will be a decode node."})


def node(
    role: Role, address: str, load: Load = IDLE, *, model: str = "m", **more: object
) -> Registration:
    known: dict[str, Any] = {"max_num_seqs": 8, "fingerprint": "f", "node_id": address}
    known["kv_connector"] = "nixl"
    return Registration(role, address, "h:0", model=model, load=load, **(known | more))


PREFILLS = node(P, "p:1", Load(0, 1, 100, 100)), node(P, "p:2"), node(P, "p:3")
NODES = *PREFILLS, node(D, "d:1", BUSY)
FULL = *PREFILLS, node(D, "d:1", Load(0, 8, 50, 100))


def told(*nodes: Registration, queued: int = 0) -> bytes:
    registry = Registry()
    for one in nodes:
        registry.apply(one, now=0)
    said = cluster_status(registry, Health(registry), now=0, in_flight=0)
    return answer(200, {**said, "requests_queued": queued})


@dataclass
class Watching:
    """A balancer that looks once a second, by a clock of ours."""

    server: RawServer
    dry_run: bool = False
    now: float = 0.0
    balancer: Balancer = field(init=False)

    def __post_init__(self) -> None:
        url = f"http://{self.server.address}"
        config = BalanceConfig(
            url=url, window_s=WINDOW_S, admin_api_key="secret", dry_run=self.dry_run
        )
        self.balancer = Balancer(config, clock=lambda: self.now)

    async def look(self, times: int = WINDOW_S + 1) -> list[str]:
        """What was asked meanwhile, but for the looks."""
        before = len(self.server.heads)
        for _ in range(times):
            await asyncio.to_thread(self.balancer.step)
            self.now += 1
        asked = [head.splitlines()[0] for head in self.server.heads[before:]]
        return [line for line in asked if line != "GET /status HTTP/1.1"]


def window(*nodes: Registration, queued: int = 0, times: int = WINDOW_S + 1) -> list[Any]:
    return [[told(*nodes, queued=queued)]] * times


async def test_the_node_is_told_its_role_by_an_admin() -> None:
    async with raw_server(*window(*NODES), [ORDERED], *window(*NODES)) as proxy:
        watching = Watching(proxy)
        assert await watching.look(WINDOW_S) == []
        assert await watching.look(1) == ["POST /instances/p:2/role HTTP/1.1"]
        assert msgspec.json.decode(proxy.bodies[-1]) == {"role": "decode"}
        assert "x-api-key: secret" in proxy.heads[-1].lower()
        assert await watching.look(WINDOW_S) == [], "a new window has begun"


async def test_a_dry_run_only_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with raw_server(*window(*NODES)) as proxy:
        assert await Watching(proxy, dry_run=True).look() == []
    assert caplog.messages == [
        "p:2 should become a decode node: 4.0 requests wait for 1 decode node"
    ]


async def test_an_order_that_is_refused_is_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    no = answer(409, {"error": {"message": "p:2: it ends"}, "detail": "p:2: it ends"})
    async with raw_server(*window(*NODES), [no], *window(*NODES), [ORDERED]) as proxy:
        watching = Watching(proxy)
        await watching.look()
        assert caplog.messages == [
            "p:2 does not become a decode node: HTTP Error 409: X: p:2: it ends"
        ]
        assert await watching.look(), "it is tried again after another window"


async def test_a_proxy_that_is_away_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    gone: Sequence[Sequence[Step]] = [[CUT]] * 2
    async with raw_server(*window(*NODES, times=WINDOW_S), *gone, *window(*NODES)) as proxy:
        assert await Watching(proxy).look(2 * WINDOW_S + 2) == []
        [lost, back] = caplog.messages
        assert lost.startswith(f"http://{proxy.address}: Remote end closed connection")
        assert back == f"http://{proxy.address} answers again"


async def test_it_looks_with_the_admins_key_only_if_the_proxy_wants_one() -> None:
    """The proxy logs each use of it, and there is a look every second."""
    refused = answer(401, {"error": {"message": "no"}})
    async with raw_server([told(*NODES)], [refused], *[[told(*NODES)]] * 2) as proxy:
        await Watching(proxy).look(times=3)
    keys = ["x-api-key: secret" in head.lower() for head in proxy.heads]
    assert keys == [False, False, True, True]


async def test_models_are_balanced_apart() -> None:
    """And nobody knows for which of them requests wait at the proxy."""
    other = node(P, "q:1", model="n"), node(P, "q:2", model="n"), node(D, "e:1", model="n")
    unknown, known = window(*FULL, *other, queued=9), window(*NODES, *other)
    async with raw_server(*unknown, *known, [ORDERED]) as proxy:
        watching = Watching(proxy)
        assert await watching.look() == []
        assert await watching.look() == ["POST /instances/p:2/role HTTP/1.1"]


async def test_of_one_model_what_waits_at_the_proxy_counts() -> None:
    async with raw_server(*window(*FULL, queued=9), [ORDERED]) as proxy:
        assert await Watching(proxy).look() == ["POST /instances/p:2/role HTTP/1.1"]


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ({}, ["POST /instances/p:1/role HTTP/1.1"]),
        ({"state": State.DRAINING}, []),
        ({"kv_connector": "tcp"}, []),
        ({"node_id": None}, []),
    ],
    ids=["ready", "draining", "misfit", "vLLM's"],
)
async def test_only_nodes_that_take_work_are_there(
    more: dict[str, Any], asked: list[str]
) -> None:
    nodes = node(P, "p:1"), node(P, "p:2", **more), NODES[-1]
    async with raw_server(*window(*nodes), [ORDERED]) as proxy:
        assert await Watching(proxy).look() == asked


async def pdserve_balance(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, "balance", *words]
    unset = {name: text for name, text in os.environ.items() if "API_KEY" not in name}
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, cwd=ROOT, env=unset
    )


async def test_without_a_key_it_can_only_look() -> None:
    ran = await pdserve_balance("--url", "http://127.0.0.1:1")
    said = "pdserve balance: changes need --admin-api-key, or say --dry-run\n"
    assert (ran.returncode, ran.stderr) == (1, said)


async def test_a_first_look_that_fails_ends_it() -> None:
    async with raw_server([answer(401, {"error": {"message": "no"}})]) as proxy:
        ran = await pdserve_balance("--url", f"http://{proxy.address}", "--dry-run")
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"pdserve balance: http://{proxy.address}: HTTP Error 401")
    assert "Traceback" not in ran.stderr


async def test_a_key_that_is_no_admins_ends_it_before_there_is_anything_to_change() -> None:
    """The proxy shows its status to anyone, or to clients."""
    refused = answer(403, {"error": {"message": "Invalid API Key"}})
    async with raw_server([refused], [answer(401, {})]) as proxy:
        url = f"http://{proxy.address}"
        ran = await pdserve_balance("--url", url, "--admin-api-key", "wrong")
    assert proxy.heads[0].startswith("GET /instances HTTP/1.1")
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"pdserve balance: {url}: HTTP Error 403")


@pytest.mark.parametrize("flag", ["--window-s=0.5", "--interval-s=0", "--min-decode=0"])
async def test_what_cannot_be_meant_is_refused_by_its_name(flag: str) -> None:
    ran = await pdserve_balance("--dry-run", flag)
    assert ran.returncode == 2
    assert flag.partition("=")[0] in ran.stdout + ran.stderr
