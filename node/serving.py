"""uvicorn as a node has it: signals are the node's, and who is late begins nothing."""

import contextlib
from collections.abc import Iterator

import uvicorn

from api.door.keeper import Keeper
from api.door.protocol import careful
from api.ending import expect_cuts
from node.keyed_door import Asgi

KEEP_ALIVE_S = 75
GRACE_S = 2


class DoorServer(uvicorn.Server):
    """Leaves signals to the node, which drains before it stops serving."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Not ours."""
        yield

    def hear_nobody(self) -> None:
        """No request begins any more: nobody would be there to end its task."""
        for one in getattr(self, "servers", ()):  # there are none before it has started
            one.close()
        for connection in self.server_state.connections:
            transport = connection.transport
            if not transport.is_closing():
                transport.pause_reading()


def http_of(app: Asgi, keeper: Keeper) -> uvicorn.Config:
    """Its settings; connections are the keeper's."""
    expect_cuts()
    return uvicorn.Config(
        app,
        http=careful(keeper),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
