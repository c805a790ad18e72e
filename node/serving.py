"""uvicorn with a node's settings: the node handles signals, starts few requests at a time, and
can stop reading them.
"""

import contextlib
from collections.abc import Iterator

import uvicorn

from api.door.limiter import ConnectionLimiter
from api.door.protocol import limited_protocol
from api.shutdown_logging import hide_cancellation_tracebacks
from node.signed_calls_only import Asgi
from node.started_in_turn import StartedInTurn

KEEP_ALIVE_S = 75
GRACE_S = 2


class NodeServer(uvicorn.Server):
    """Leaves signals to the node, which drains before the server stops."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not install uvicorn's signal handlers."""
        yield

    def stop_reading(self) -> None:
        """Start no more requests: their tasks would outlive the server."""
        for one in getattr(self, "servers", ()):  # there are none before it has started
            one.close()
        for connection in self.server_state.connections:
            transport = connection.transport
            if not transport.is_closing():
                transport.pause_reading()


def uvicorn_config(app: Asgi, limiter: ConnectionLimiter) -> uvicorn.Config:
    """Uvicorn's settings; `limiter` limits the connections."""
    hide_cancellation_tracebacks()
    return uvicorn.Config(
        StartedInTurn(app),
        http=limited_protocol(limiter),
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
