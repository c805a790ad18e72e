"""The NIXL mover's sources and reads, and which sources have to be asked for help.

Over shared memory and RDMA a read advances by itself, once there is a connection. To establish
the connection, and always over plain TCP, UCX needs the source's agent to be polled.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kv_transfer.errors import PeerUnreachable, TransferError
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.nixl_build import FAILURES, STILL_ACTIVE
from kv_transfer.movers.staging import StagedTransfer
from kv_transfer.regions import RemoteRegion

if TYPE_CHECKING:
    from nixl_cu12._api import nixl_agent, nixl_prepped_dlist_handle, nixl_xfer_handle

log = logging.getLogger(__name__)
STALLED_S = 0.01  # without a piece that ends


@dataclass(slots=True, eq=False)
class Transfer:
    """A started transfer; `landing`: the staging slot from which its bytes are moved on."""

    handle: "nixl_xfer_handle"
    landing: StagedTransfer | None = None


TransferMaker = Callable[[], Transfer | None]
"""Makes a transfer that is ready to start; None: there is no room for it now."""


@dataclass(slots=True, eq=False)
class NixlSource:
    """A source, and the list of its blocks as NIXL has prepared it.

    `shares_memory`, as far as is known: then it is needed only to establish the connection, so
    until something was read (`connected`).
    """

    agent: str
    regions: Sequence[RemoteRegion]
    blocks: "nixl_prepped_dlist_handle"
    shares_memory: bool
    connected: bool = False

    @property
    def patience_s(self) -> float:
        """How long a read from it may stall before the source is asked for help."""
        return STALLED_S if self.shares_memory and self.connected else 0.0


@dataclass(slots=True)
class NixlRead:
    """One order: pieces that wait, and transfers that were started."""

    order: ReadOrder
    peer: NixlSource | None
    waiting: deque[TransferMaker] = field(default_factory=deque)
    begun: list[Transfer] = field(default_factory=list)
    error: TransferError | None = None
    patience: float = 0.0  # when its source is asked for help unless a piece has ended

    def be_patient(self, now: float) -> None:
        """Progress was made: wait again, at least until a time set earlier."""
        patience_s = self.peer.patience_s if self.peer else STALLED_S
        self.patience = max(self.patience, now + patience_s)

    def fail(self, error: TransferError) -> None:
        """Start nothing more; the read ends when its started transfers have ended."""
        self.error = self.error or error
        self.waiting.clear()


def has_ended(agent: "nixl_agent", read: NixlRead, handle: "nixl_xfer_handle") -> bool:
    """Whether NIXL writes nothing more for this transfer; if so, its handle is released.

    If it failed, so does the read. A handle that NIXL does not let go is its own to keep.
    """
    try:
        state = agent.check_xfer_state(handle)
    except FAILURES as error:
        state = "ERR"
        read.fail(PeerUnreachable(repr(error)))
    if state == "PROC":
        return False
    if state == "ERR":
        read.fail(PeerUnreachable("the transfer failed"))
    try:
        handle.release()
    except STILL_ACTIVE:
        return False
    except FAILURES as error:
        log.warning("NIXL does not release a transfer that is over: %r", error)
    return True


def note_connected(over: Iterable[NixlRead]) -> None:
    """Record that these sources have a connection, since something was read from them."""
    for read in over:
        if read.peer and read.error is None:
            read.peer.connected = True
