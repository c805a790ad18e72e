"""What routing plans and heartbeats cost with a thousand registered nodes."""

import argparse
import asyncio
import signal
import statistics
import time
from collections.abc import Iterator
from itertools import count as numbers
from random import Random
from typing import get_args

import aiohttp
import zmq
from msgspec.structs import replace

from bench.proxy.cluster import NAME, proxy_command, running
from bench.proxy.load import cpu_clock
from discovery.lifeline import end_with, report_to_starter
from discovery.registration import BEAT_S, Layout, Load, Registration, Role, pack, to_map
from discovery.registry import Registry
from engine.request import Request, RequestId
from proxy.attempt.node_choice import NodeChoice
from proxy.attempt.progress import Progress
from proxy.config import LocalPrefill, Policy
from proxy.errors import NodeFailed
from proxy.health.health import Health
from proxy.routing.building import build_planner
from proxy.routing.layouts import layout_difference
from proxy.routing.plan import RoutingQuery
from proxy.timeline.choice import ChoiceTimeline

ROLES = (Role.PREFILL, Role.DECODE)
LAYOUT: Layout = {"dtype": "bfloat16", "block_size": 16, "num_kv_heads": 8, "head_size": 128}
PLANS = 300
WINDOW_S = 5.0
SETTLE_S = 2.0
LOADS = 3
PROMPT, LONG_PROMPT = tuple(range(1000, 1256)), tuple(range(1000, 3000))


def crowd(count: int) -> list[Registration]:
    """Half of each role, all of a model; each with a load of its own."""
    return [
        Registration(
            ROLES[number % 2],
            f"10.0.{number // 250}.{number % 250}:8000",
            f"10.0.{number // 250}.{number % 250}:21001",
            node_id=f"node-{number:06}",
            model=NAME,
            fingerprint="script",
            kv_layout=LAYOUT,
            max_model_len=8192,
            load=Load(number % 7, number % 31, 1000 + number, 8192),
        )
        for number in range(count)
    ]


def plans(count: int) -> Iterator[tuple[str, float]]:
    """Seconds for one plan among so many nodes, median, by policy; the names of a prompt apart.

    The default's also with a node in trouble, and where decode may run prompts itself.
    """
    for name in get_args(Policy):
        yield f"a plan, {name}", _median_plan(count, name)
    yield "a plan, planned, one breaker open", _median_plan(count, "planned", in_trouble=1)
    yield "a plan, planned, local prefill auto", _median_plan(count, "planned", local="auto")
    request = Request(RequestId("request"), LONG_PROMPT)
    times = list[float]()
    for _ in range(PLANS):
        since = time.perf_counter()
        RoutingQuery.of(request, 0.0)
        times.append(time.perf_counter() - since)
    yield f"names of {len(LONG_PROMPT)} tokens", statistics.median(times)


def _median_plan(
    count: int, policy: Policy, in_trouble: int = 0, local: LocalPrefill = "never"
) -> float:
    registry, now = Registry(differ=layout_difference), time.monotonic()
    for one in crowd(count):
        registry.apply(one, now=now)
    planner, health = build_planner(policy, policy, local, Random(0)), Health(registry)
    for node in registry.nodes(Role.DECODE, now=now)[:in_trouble]:
        health.record_failure(NodeFailed(node.node_id, "is gone"), begun=now, now=now)
    times = list[float]()
    for number in range(PLANS):
        request = Request(RequestId(f"request-{number}"), PROMPT)
        progress = Progress(request, ChoiceTimeline(request))
        choice = NodeChoice(registry, planner, health, progress)
        ask = RoutingQuery.of(request, now)
        since = time.perf_counter()
        plan = choice.plan(ask)
        times.append(time.perf_counter() - since)
        assert plan
        planner.start(plan, ask).claim().release(now)
    return statistics.median(times)


async def heartbeats(count: int) -> float:
    """What of a core a proxy takes to hear so many nodes once a second, and nothing else."""
    async with running("crowded proxy", *proxy_command()) as proxy:
        assert proxy.facts
        assert proxy.process
        discovery = proxy.facts["discovery_address"]
        command = "-m", "bench.proxy.crowd", "--proxy", discovery, "--count", str(count)
        clock = cpu_clock(proxy.process.pid)
        idle = await _share(clock)
        async with running("crowd", *command):
            await _all_known(proxy.facts["http_address"], count)
            return await _share(clock) - idle


async def _share(clock: int) -> float:
    await asyncio.sleep(SETTLE_S)
    before, since = time.clock_gettime(clock), time.perf_counter()
    await asyncio.sleep(WINDOW_S)
    return (time.clock_gettime(clock) - before) / (time.perf_counter() - since)


async def _all_known(address: str, count: int) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(30):
        while True:
            async with session.get(f"http://{address}/metrics") as answer:
                lines = (await answer.text()).splitlines()
            known = [line for line in lines if line.startswith("pdserve_proxy_nodes{")]
            if sum(float(line.rpartition(" ")[2]) for line in known) == count:
                return
            await asyncio.sleep(0.2)


def main() -> None:
    """Announce so many nodes, each with a socket of its own, spread over every second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--proxy", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--supervisor-fd", type=int, required=True)
    options = parser.parse_args()
    end_with(options.supervisor_fd)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _announce(options.proxy, options.count, options.supervisor_fd)


def _announce(proxy: str, count: int, supervisor: int) -> None:
    context = zmq.Context[zmq.Socket[bytes]]()
    context.set(zmq.MAX_SOCKETS, 2 * count)
    frames, dealers = _frames(count), list[zmq.Socket[bytes]]()
    for _ in range(count):
        dealers.append(context.socket(zmq.DEALER))
        dealers[-1].connect(f"tcp://{proxy}")
    report_to_starter(
        supervisor, http_address=proxy
    )  # that they are there; they have no doors of their own
    begun = time.monotonic()
    for turn in numbers():
        number, beat = turn % count, turn // count
        dealers[number].send(frames[(number, beat % LOADS)], zmq.NOBLOCK)
        time.sleep(max(0.0, begun + turn * BEAT_S / count - time.monotonic()))


def _frames(count: int) -> dict[tuple[int, int], bytes]:
    """What each node says in turn: never twice the same load."""
    return {
        (number, turn): pack(to_map(replace(one, load=Load(turn, number % 31, 1000, 8192))))
        for number, one in enumerate(crowd(count))
        for turn in range(LOADS)
    }


if __name__ == "__main__":
    main()
