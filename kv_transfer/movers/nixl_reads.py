"""What the NIXL mover knows of its sources, and of its reads: who has to be asked for help.

A read gets on by itself over shared memory and RDMA, once there is a connection. To make one,
and always over plain TCP, UCX needs the source's agent to be polled meanwhile.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kv_transfer.errors import TransferError
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.staging import StagedTransfer
from kv_transfer.regions import RemoteRegion

if TYPE_CHECKING:
    from nixl_cu12._api import nixl_prepped_dlist_handle, nixl_xfer_handle

STALLED_S = 0.01  # without a piece that ends


@dataclass(slots=True, eq=False)
class Transfer:
    """One that was begun; `landing`: its bytes are moved on from where they come to."""

    handle: "nixl_xfer_handle"
    landing: StagedTransfer | None = None


TransferMaker = Callable[[], Transfer | None]
"""Makes a transfer to be begun; None: there is no room for it now."""


@dataclass(slots=True, eq=False)
class NixlSource:
    """A source, and the list of its blocks as NIXL has prepared it.

    `shares_memory`, as far as we know: then only its connection wants its help, so until
    something was read (`connected`).
    """

    agent: str
    regions: Sequence[RemoteRegion]
    blocks: "nixl_prepped_dlist_handle"
    shares_memory: bool
    connected: bool = False

    @property
    def patience_s(self) -> float:
        """How long a read from it may stand still before it is asked for help."""
        return STALLED_S if self.shares_memory and self.connected else 0.0


@dataclass(slots=True)
class NixlRead:
    """One order: pieces that wait, and transfers that were begun."""

    order: ReadOrder
    peer: NixlSource | None
    waiting: deque[TransferMaker] = field(default_factory=deque)
    begun: list[Transfer] = field(default_factory=list)
    error: TransferError | None = None
    patience: float = 0.0  # when its source is asked for help, if nothing has ended by then

    def be_patient(self, now: float) -> None:
        """It has just moved; what it was told to wait for anyway, it waits for."""
        patience_s = self.peer.patience_s if self.peer else STALLED_S
        self.patience = max(self.patience, now + patience_s)

    def fail(self, error: TransferError) -> None:
        """Nothing more is begun; it ends with what was."""
        self.error = self.error or error
        self.waiting.clear()


def note_connected(over: Iterable[NixlRead]) -> None:
    """What these have read came over a connection."""
    for read in over:
        if read.peer and read.error is None:
            read.peer.connected = True
