"""Who is told to stop ends what runs, keeps what others will fetch, and hands on the rest."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.cluster import Running, gone, running, tokens_of
from tests.e2e.streams import streamed
from tests.fakes.driver import prompt

STREAMS = 8
LONG, SHORT = 400, 8
HELD = {"do_remote_decode": True, "do_remote_prefill": False}
RETRIES, FAILURES = "pdserve_proxy_retries_total", "pdserve_proxy_node_failures_total"
PATIENCE_S, DRAIN_S = 20.0, 120.0
HASTY: dict[str, Any] = {
    "cluster_key": "signed",
    "drain_timeout_s": 0.0,
    "policy": "round_robin",
    "first_sign_timeout_s": 120.0,  # who is stopped here is not to be given up for it
    "silence_timeout_s": 120.0,
}


async def test_a_stream_that_is_not_done_in_time_is_handed_on_and_nobody_is_blamed(
    tiny: Path,
) -> None:
    """Told by the node itself: nothing breaks off, and its breaker stays closed."""
    async with running(tiny, prefill=1, decode=2, **HASTY) as cluster:
        undisturbed = tokens_of(await cluster.complete(prompt(40), max_tokens=LONG))
        engine, door = cluster.engine("decode-0"), cluster.door("decode-0")
        caught, streams = list[str](), list[asyncio.Task[list[int]]]()
        while not caught:  # a slow test may come when all of them are over there
            assert all([await one == undisturbed for one in streams])
            begun, streams = await under_way(cluster, LONG)
            os.kill(engine, signal.SIGSTOP)
            caught = await all_at(cluster, "decode-0", begun)
            if not caught:
                os.kill(engine, signal.SIGCONT)
        os.kill(door, signal.SIGTERM)
        told = await asyncio.gather(*streams)
        assert told == [undisturbed] * STREAMS
        handed_on = [await timeline(cluster, name) for name in caught]
        # KV that decode had not fetched yet is still on offer: nothing is computed anew then
        assert all(one["tries"] > 1 or one["moves"] for one in handed_on)
        page = await metrics(cluster)
        assert {labels["reason"] for labels in page[RETRIES]} <= {"leaving"}
        assert not page[FAILURES]
        await gone(engine, within_s=PATIENCE_S)  # as it stands, with its door
        await gone(door, within_s=PATIENCE_S)


async def test_a_leg_that_comes_as_its_node_stops_is_handed_on_and_nobody_is_blamed(
    tiny: Path,
) -> None:
    """It was on its way when the node had said to all that it knew of that it stops."""
    async with running(tiny, prefill=1, decode=2, **HASTY) as cluster:
        undisturbed = tokens_of(await cluster.complete(prompt(40), max_tokens=SHORT))
        engine, door = cluster.engine("decode-0"), cluster.door("decode-0")
        late, streams = list[str](), list[asyncio.Task[list[int]]]()
        while not late:  # a slow test may come when it was silent for too long to be asked
            assert all([await one == undisturbed for one in streams])
            os.kill(engine, signal.SIGSTOP)  # or it might have said all in time
            os.kill(door, signal.SIGSTOP)
            begun, streams = await under_way(cluster, SHORT)
            late = await all_at(cluster, "decode-0", begun)
            if not late:
                os.kill(engine, signal.SIGCONT)
                os.kill(door, signal.SIGCONT)
        os.kill(door, signal.SIGTERM)
        os.kill(door, signal.SIGCONT)
        assert await asyncio.gather(*streams) == [undisturbed] * STREAMS
        moved = [await timeline(cluster, name) for name in late]
        assert all(one["moves"] == 1 and one["tries"] == 1 for one in moved)
        page = await metrics(cluster)
        assert not page[RETRIES]
        assert not page[FAILURES]


async def test_an_engine_that_stands_still_dies_with_its_door(tiny: Path) -> None:
    async with running(tiny, prefill=1, decode=2) as cluster:
        engine, door = cluster.engine("decode-0"), cluster.door("decode-0")
        os.kill(engine, signal.SIGSTOP)
        os.kill(door, signal.SIGKILL)
        await gone(engine, within_s=PATIENCE_S)


async def test_a_prefill_node_ends_when_its_kv_was_fetched_and_not_before(tiny: Path) -> None:
    async with running(tiny, drain_timeout_s=DRAIN_S) as cluster:
        prefill, decode = await nodes(cluster)
        expected = tokens_of(await cluster.complete(prompt(60), max_tokens=SHORT))
        ticket = await hold(cluster, prefill)
        door = cluster.door("prefill-0")
        os.kill(door, signal.SIGTERM)
        await draining(cluster, prefill)
        said = await fetch(cluster, decode, ticket)
        assert said == expected
        await gone(door, within_s=PATIENCE_S)  # and not the whole of its time, nor of a lease


async def test_a_prefill_node_waits_for_nobody_for_longer_than_it_was_told(tiny: Path) -> None:
    async with running(tiny, drain_timeout_s=1.0) as cluster:
        prefill, _ = await nodes(cluster)
        await hold(cluster, prefill)
        door, since = cluster.door("prefill-0"), time.monotonic()
        os.kill(door, signal.SIGTERM)
        await gone(door, within_s=PATIENCE_S)
        assert time.monotonic() - since >= 1.0  # its lease would have lasted for 30 s


async def nodes(cluster: Running) -> tuple[str, str]:
    """The addresses of a prefill and a decode node."""
    found = {node["role"]: node["http_address"] for node in await cluster.nodes()}
    return found["prefill"], found["decode"]


async def timeline(cluster: Running, name: str) -> dict[str, Any]:
    """What happened to the only choice of a request."""
    async with cluster.session.get(f"{cluster.url}/requests/{name}") as answer:
        choice: dict[str, Any] = (await answer.json())["choices"][0]
        return choice


async def under_way(
    cluster: Running, length: int
) -> tuple[list[str], list["asyncio.Task[list[int]]"]]:
    """STREAMS that have all begun: what they are called, and their tokens."""
    begun = {uuid4().hex: asyncio.Event() for _ in range(STREAMS)}
    streams = [
        asyncio.create_task(
            streamed(cluster.session, cluster.url, prompt(40), length, event, name)
        )
        for name, event in begun.items()
    ]
    for event in begun.values():
        await event.wait()
    return list(begun), streams


async def is_at(cluster: Running, node: str, name: str) -> bool:
    """Whether a request that runs is decoded there."""
    facts, choice = cluster.child(node).facts, await timeline(cluster, name)
    plans = [one for one in choice["events"] if one["event"] == "planned"]
    assert facts
    return choice["finish"] is None and plans[-1]["decode"] == facts["http_address"]


async def all_at(cluster: Running, node: str, names: Sequence[str]) -> list[str]:
    """Those of them that run and are decoded there."""
    return [name for name in names if await is_at(cluster, node, name)]


async def hold(cluster: Running, prefill: str) -> dict[str, Any]:
    """A prompt's KV, offered to whoever has this ticket."""
    body = {
        **{"token_ids": list(prompt(60)), "stream": False, "kv_transfer_params": HELD},
        "sampling_params": {"max_tokens": 1, "temperature": 0, "ignore_eos": True},
    }
    url = f"http://{prefill}/inference/v1/generate"
    async with cluster.session.post(url, json=body) as answer:
        assert answer.status == 200
        ticket: dict[str, Any] = (await answer.json())["kv_transfer_params"]
        return ticket


async def fetch(cluster: Running, decode: str, ticket: dict[str, Any]) -> list[int]:
    body = {
        **{"token_ids": list(prompt(60)), "stream": False, "kv_transfer_params": ticket},
        "sampling_params": {"max_tokens": SHORT, "temperature": 0, "ignore_eos": True},
    }
    async with cluster.session.post(
        f"http://{decode}/inference/v1/generate", json=body
    ) as answer:
        assert answer.status == 200
        said: list[int] = (await answer.json())["choices"][0]["token_ids"]
        return said


async def draining(cluster: Running, address: str) -> None:
    """The proxy has heard that this node stops."""
    async with asyncio.timeout(PATIENCE_S):
        while not [
            node
            for node in await cluster.nodes()
            if node["http_address"] == address and node["state"] == "draining"
        ]:
            pass


async def metrics(cluster: Running) -> dict[str, list[dict[str, str]]]:
    """The labels of all samples of the proxy, by name."""
    found: dict[str, list[dict[str, str]]] = {RETRIES: [], FAILURES: []}
    async with cluster.session.get(f"{cluster.url}/metrics") as answer:
        for family in text_string_to_metric_families(await answer.text()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)
    return found
