"""What comes to the discovery port over real sockets: refused, counted, and forgotten."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass

import pytest
import zmq
from prometheus_client import generate_latest

from discovery.listener import Listener
from discovery.registration import Registration, Role, pack, to_map
from discovery.registry import Registry
from discovery.signature import sign
from proxy.health.health import Health
from proxy.observing.metrics import ProxyMetrics
from tests.fakes.waiting import comes_true

HERE, KEY, PATIENCE_S = "127.0.0.1", b"the cluster's key", 10
NODE = to_map(Registration(Role.DECODE, "h:1", "h:2", "d0"))


@dataclass
class Ear:
    """A listener that runs, and somebody who sends to it."""

    registry: Registry
    port: int
    dealer: zmq.Socket[bytes]

    async def refused(self, reason: str, count: int = 1) -> None:
        await comes_true(lambda: self.registry.refused[reason] >= count)
        assert self.registry.refused == {reason: count}


@asynccontextmanager
async def listening(key: bytes | None = KEY) -> AsyncGenerator[Ear]:
    registry, context = Registry(), zmq.Context[zmq.Socket[bytes]]()
    with closing(Listener.bind(registry, HERE, 0, cluster_key=key)) as listener:
        running = asyncio.create_task(listener.run())
        with context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(f"tcp://{HERE}:{listener.port}")
            yield Ear(registry, listener.port, dealer)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    context.term()


def good(key: bytes = KEY, ago_s: float = 0.0, **changed: str) -> bytes:
    return pack(sign(NODE | changed, key, wall_time=time.time() - ago_s))


REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a wrong key": ("forged", lambda: good(b"another key")),
    "a changed word": ("forged", lambda: good().replace(b"h:1", b"x:1")),
    "no signature": ("unsigned", lambda: pack(NODE)),
    "an old message": ("stale", lambda: good(ago_s=60)),
    "a forged type": ("malformed", lambda: good(type="X")),
    "1 MB of noise": ("oversized", lambda: bytes(range(256)) * 4096),
    "noise": ("malformed", lambda: bytes(range(256))),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_it_is_refused_and_counted_and_good_ones_are_heard(what: str) -> None:
    reason, make = REFUSED[what]
    async with listening() as ear:
        ear.dealer.send(make())
        await ear.refused(reason)
        assert not len(ear.registry)
        ear.dealer.send(good())
        await comes_true(lambda: ear.registry.at("h:1") is not None)
        page = generate_latest(ProxyMetrics(ear.registry, Health(ear.registry)).all).decode()
        assert f'registrations_refused_total{{reason="{reason}"}} 1.0' in page


async def test_a_message_that_is_sent_again_is_refused() -> None:
    async with listening() as ear:
        message = good()
        for _ in range(3):
            ear.dealer.send(message)
        await ear.refused("replayed", 2)
        assert len(ear.registry) == 1
