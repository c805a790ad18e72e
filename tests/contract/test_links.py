"""What a link between two nodes survives; for connectors that have one."""

import pytest

from kv_transfer.api import Arrived, Sealed
from kv_transfer.errors import PeerUnreachable
from kv_transfer.thread.threaded import ThreadedSink
from tests.contract.rigs import ANY_MOVE, Rig, RigMaker, nixl_rig, tcp_rig


def move(rig: Rig, name: str) -> Arrived:
    ticket = rig.source.offer(name)
    rig.source.extend(ticket.ticket_id, [5])
    rig.source.seal(ticket.ticket_id, Sealed(1, 7))
    rig.sink.pull(ticket, into=[0])
    (arrived,) = rig.arrive()
    return arrived


@pytest.mark.parametrize("make", [nixl_rig, tcp_rig], ids=["nixl", "tcp"])
def test_a_link_that_broke_costs_one_pull(make: RigMaker) -> None:
    with make() as rig:
        rig.fill(5, b"a")
        assert move(rig, "before").error is None
        ticket = rig.source.offer("where")
        assert isinstance(rig.sink, ThreadedSink)
        rig.sink.service.mover.disconnect((ticket.host, ticket.port))  # the books do not know
        assert isinstance(move(rig, "under").error, PeerUnreachable)
        rig.ours[0] = 0
        after = move(rig, "after")
        assert after == Arrived(after.ticket_id, Sealed(1, 7), stats=ANY_MOVE)
        assert rig.letters[:1] == b"a"
