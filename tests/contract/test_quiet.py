"""Nothing is written to blocks after their Arrived: somebody else has them by then."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from engine.api import KvRegion
from kv_transfer.api import Sealed
from kv_transfer.local.connector import LocalSink
from kv_transfer.local.faults import Cut, Delay, Fault, On, Step
from kv_transfer.movers.mover import Mover
from kv_transfer.movers.nixl import NixlMover
from kv_transfer.movers.tcp import TcpMover
from kv_transfer.ticket import KvTicket
from kv_transfer.wire import SILENCE_S
from tests.contract.quiet import Start, writes_on
from tests.contract.rigs import (
    BLOCK,
    BLOCKS,
    CONNECTORS,
    HERE,
    Rig,
    RigMaker,
    local_rig,
    nixl_rig,
)

ROOT = Path(__file__).parents[2]
POISON = bytearray(b"p" * BLOCK * BLOCKS)


def tcp(_: str, regions: Sequence[KvRegion]) -> Mover:
    return TcpMover.start(HERE, HERE, regions)


def abandon(rig: Rig, ticket: KvTicket) -> None:
    rig.sink.abandon(ticket)


def withdraw(rig: Rig, ticket: KvTicket) -> None:
    rig.source.withdraw(ticket.ticket_id)


def unplug(rig: Rig, _: KvTicket) -> None:
    rig.unplug()


def close(rig: Rig, _: KvTicket) -> None:
    rig.sink.close()


ENDS: list[Callable[[Rig, KvTicket], None]] = [abandon, withdraw, unplug, close]


def pull(rig: Rig) -> KvTicket:
    ticket = rig.source.offer("r")
    for block in range(3):
        rig.fill(block, b"a")
    rig.source.extend(ticket.ticket_id, [0, 1, 2])
    rig.source.seal(ticket.ticket_id, Sealed(3, 0))
    rig.sink.pull(ticket, into=[0, 1, 2])
    return ticket


def stays_as_it_is(rig: Rig) -> None:
    rig.ours[:] = POISON
    for _ in range(3):
        assert rig.arrive() == []
        rig.advance(SILENCE_S)
    assert rig.ours == POISON


@pytest.mark.parametrize("make", CONNECTORS)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("steps", range(5))
def test_however_a_pull_ends(
    make: RigMaker, end: Callable[[Rig, KvTicket], None], steps: int
) -> None:
    with make() as rig:
        ticket = pull(rig)
        news = [arrived for _ in range(steps) for arrived in rig.once()]
        end(rig, ticket)
        news += rig.arrive()
        if end is unplug and make is nixl_rig and not news:
            return  # for all UCX knows its source only sleeps, and may still be read
        assert len(news) == 1
        stays_as_it_is(rig)


@pytest.mark.parametrize(
    "step",
    [
        On("read", Delay(SILENCE_S / 2)),
        On("read", Fault.DROP),
        On("read", Cut(at_byte=BLOCK + 1)),
        On("settle", Delay(10)),
        On("settle", Fault.DUPLICATE),
        On("look", Delay(10)),
    ],
)
@pytest.mark.parametrize("end", [*ENDS, None])
def test_whatever_the_link_suffers(
    step: Step, end: Callable[[Rig, KvTicket], None] | None
) -> None:
    with local_rig() as rig:
        assert isinstance(rig.sink, LocalSink)
        rig.sink.faults = deque([step])
        ticket = pull(rig)
        news = [*rig.once(), *rig.once()]
        if end:
            end(rig, ticket)
        while not news:
            rig.advance(SILENCE_S)
            news += rig.once()
        stays_as_it_is(rig)


@pytest.mark.parametrize("start", [tcp, NixlMover.start], ids=["tcp", "nixl"])
def test_a_mover_that_was_parted_from_its_peer(start: Start) -> None:
    assert writes_on(start) == []


def test_nixl_over_a_network() -> None:
    """There a transfer that NIXL has forgotten goes on, so it must not be forgotten."""
    command = [sys.executable, "-m", "tests.contract.quiet"]
    environment = {**os.environ, "UCX_TLS": "tcp"}
    ran = subprocess.run(command, cwd=ROOT, env=environment, timeout=60, check=False)
    assert ran.returncode == 0
