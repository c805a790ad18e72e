"""A KV port whose messages cannot be read is nobody to wait for, and disturbs nobody else."""

import logging
import socket

import msgspec
import pytest

from kv_transfer.api import Arrived, Outcome, Sealed
from kv_transfer.errors import PeerUnreachable
from kv_transfer.side_channel.frames import LENGTH_BYTES, framed
from kv_transfer.ticket import LEASE_S, KvTicket
from kv_transfer.wire import SILENCE_S, Hello, encode
from tests.contract.rigs import ANY_MOVE, HERE, Rig, tcp_rig
from tests.fakes.reception import PATIENCE_S

TURN_S = SILENCE_S / 4
LATER: dict[str, object] = {"type": "Welcome", "version": 2, "engine_id": "e", "planes": {}}


def delivered(rig: Rig, name: str) -> bool:
    """Whether the two that understand each other do."""
    rig.fill(5, b"a")
    ticket = rig.source.offer(name)
    rig.source.extend(ticket.ticket_id, [5])
    rig.source.seal(ticket.ticket_id, Sealed(1, 7))
    rig.sink.pull(ticket, into=[0])
    arrived = rig.arrive() == [Arrived(ticket.ticket_id, Sealed(1, 7), stats=ANY_MOVE)]
    return arrived and rig.outcomes() == [Outcome.DELIVERED]


def test_a_source_of_another_version_is_given_up_although_it_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Decode waited for KV until the client's gateway had enough (llm-d#355)."""
    caplog.set_level(logging.WARNING)
    with tcp_rig() as rig, socket.create_server((HERE, 0)) as later:
        host, port = later.getsockname()
        rig.sink.pull(KvTicket("t", "e", host, port, "same"), into=[3])
        assert rig.arrive() == []
        connection, _ = later.accept()
        with connection:
            connection.settimeout(PATIENCE_S)
            assert connection.recv(LENGTH_BYTES)
            ends, waited_s = list[Arrived](), 0.0
            while not ends and waited_s <= 2 * SILENCE_S:
                connection.sendall(framed(msgspec.msgpack.encode(LATER)))
                rig.advance(TURN_S)
                waited_s += TURN_S
                ends = rig.arrive()
        (end,) = ends
        assert (end.ticket_id, type(end.error)) == ("t", PeerUnreachable)
        assert waited_s <= SILENCE_S + TURN_S
        assert delivered(rig, "r")
    told = [one.getMessage() for one in caplog.records]
    assert [line for line in told if "dropped" in line and str(port) in line]


def test_a_sink_of_another_version_takes_nothing_and_keeps_nothing() -> None:
    with tcp_rig() as rig:
        ticket = rig.source.offer("r")
        rig.source.seal(ticket.ticket_id, Sealed(0, 7))
        with socket.create_connection((ticket.host, ticket.port), PATIENCE_S) as later:
            hello = encode(Hello("same", rig.sink.service.identity.layout))  # type: ignore[attr-defined]
            pull = msgspec.msgpack.encode({"type": "Pull", "key": ticket.ticket_id})
            later.sendall(framed(b"later") + framed(hello) + framed(pull))
            assert delivered(rig, "other")
            rig.advance(LEASE_S)
            assert rig.outcomes() == [Outcome.EXPIRED]
            assert rig.arrive() == []
