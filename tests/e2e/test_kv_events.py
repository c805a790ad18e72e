"""A router that hears both nodes' cache events knows what is cached where."""

import asyncio
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from tests.e2e.cluster import Running, running
from tests.fakes.driver import prompt

CONFIG = '{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:*", "topic": "kv"}'
BLOCK = 16
ASKED, OTHER = prompt(40), prompt(40, seed=9)
PATIENCE_S = 60


async def test_each_node_tells_what_it_has(tiny: Path) -> None:
    """Prefill computes the prompt and decode fetches it: both have its blocks, by one name."""
    async with running(tiny, kv_events_config=CONFIG) as cluster:
        endpoints = await endpoints_of(cluster)
        with zmq.asyncio.Context() as context, ExitStack() as sockets:
            heard = {role: sockets.enter_context(context.socket(zmq.SUB)) for role in endpoints}
            for role, subscriber in heard.items():
                subscriber.setsockopt(zmq.LINGER, 0)
                subscriber.subscribe(b"kv")
                subscriber.connect(endpoints[role])
            await subscribed(cluster, heard)
            await cluster.complete(ASKED, max_tokens=4)
            prefill, decode = await asyncio.gather(
                *(block_names(heard[role]) for role in ("prefill", "decode"))
            )
    assert prefill == decode
    assert len(prefill) == len(ASKED) // BLOCK


async def endpoints_of(cluster: Running) -> dict[str, str]:
    found = dict[str, str]()
    for node in await cluster.nodes():
        url = f"http://{node['http_address']}/kv_event_sources"
        async with cluster.session.get(url) as answer:
            found[node["role"]] = (await answer.json())["0"]["endpoint"]
    return found


async def subscribed(cluster: Running, heard: dict[str, zmq.asyncio.Socket]) -> None:
    """Ask other prompts until each subscriber heard of one."""
    waiting, tries = set(heard), 0
    async with asyncio.timeout(PATIENCE_S):
        while waiting:
            tries += 1
            await cluster.complete([tries, *OTHER], max_tokens=1)
            waiting -= {role for role in waiting if await heard[role].poll(100)}


async def block_names(subscriber: zmq.asyncio.Socket) -> list[bytes]:
    """The hashes of the blocks of ASKED, once its first block is heard of."""
    names = dict[int, bytes]()
    async with asyncio.timeout(PATIENCE_S):
        while len(names) < len(ASKED) // BLOCK:
            _, _, batch = await subscriber.recv_multipart()
            for event in msgspec.msgpack.decode(batch)[1]:
                names.update(names_in(event))
    return [names[index] for index in range(len(names))]


def names_in(event: dict[str, Any]) -> dict[int, bytes]:
    """Which blocks of ASKED a BlockStored has."""
    tokens, size = tuple(event["token_ids"]), event["block_size"]
    return {
        index: name
        for place, name in enumerate(event["block_hashes"])
        for index in range(len(ASKED) // BLOCK)
        if tokens[place * size : (place + 1) * size] == ASKED[index * size : (index + 1) * size]
    }
