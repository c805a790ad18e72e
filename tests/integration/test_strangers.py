"""What strangers send to a node's side channel is dropped, and fills no log."""

import logging

import pytest

from kv_transfer.side_channel.frames import framed
from tests.contract.rigs import HERE, tcp_rig
from tests.fakes.caller import calling

FLOOD = 50


def test_a_flood_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with tcp_rig() as rig:
        port = rig.source.offer("r").port
        with calling((HERE, port)) as stranger, caplog.at_level(logging.WARNING):
            for _ in range(FLOOD):
                stranger.connection.sendall(framed(b"what?"))
            for _ in range(FLOOD):
                rig.step()
        assert "dropped" in caplog.records[0].message
        assert len(caplog.records) == 1
