"""What strangers send to a node's side channel is dropped, and fills no log."""

import logging

import pytest
import zmq

from tests.contract.rigs import HERE, tcp_rig

FLOOD = 50
PATIENCE_MS = 5_000


def test_a_flood_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with tcp_rig() as rig, zmq.Context[zmq.Socket[bytes]]() as context:
        ticket = rig.source.offer("r")
        with context.socket(zmq.DEALER) as stranger, caplog.at_level(logging.WARNING):
            stranger.setsockopt(zmq.LINGER, PATIENCE_MS)
            stranger.connect(f"tcp://{HERE}:{ticket.port}")
            for _ in range(FLOOD):
                stranger.send_multipart([b"\xc1", b"what?"])
            for _ in range(FLOOD):
                rig.step()
        assert "dropped" in caplog.records[0].message
        assert len(caplog.records) == 1
