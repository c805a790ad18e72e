"""The process of a follower rank: its shard of the weights and of the KV memory.

The engine process writes a RankProcessConfig to its standard input, which stays open for as
long as the engine process lives.
"""

import logging
import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from threading import Thread

import msgspec
from torch._C._distributed_c10d import TCPStore

from discovery.garbage_collection import freeze_loaded_objects
from discovery.lifeline import die_with_parent, end_with, first_line
from discovery.logs import start_logging
from engine.errors import EngineError, RankLost
from engine.loading import load_follower
from engine.ranks.channel import Channel
from engine.ranks.follower import Follower
from engine.ranks.links import LeaderLink
from kv_transfer.factory import device_bytes, rank_server
from kv_transfer.movers.remote import MoverServer
from kv_transfer.thread.devices import enter_device
from node.ranks import LOOPBACK, RankProcessConfig

log = logging.getLogger(__name__)


def main() -> None:
    """Load the shard and run rank 0's batches until it ends."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ends with its engine process, which drains
    job = msgspec.json.decode(first_line(sys.stdin.fileno()), type=RankProcessConfig)
    end_with(sys.stdin.fileno())
    die_with_parent()
    start_logging(job.log_level, lossy=job.lossy_log)
    channel = Channel(socket.socket(fileno=job.channel_fd))
    post = LeaderLink(channel, TCPStore(LOOPBACK, job.store_port), job.memory_fd)
    try:
        beside = device_bytes(job.connector)
        follower = load_follower(job.engine, job.rank, post, transfer_bytes=beside)
        server = _server(job, follower)
    except (EngineError, OSError, ImportError, ValueError, RuntimeError) as error:
        log.error("rank %d cannot start: %s", job.rank, error)
        sys.exit(1)
    freeze_loaded_objects()
    Thread(target=_serve, args=(server,), name="transfer", daemon=True).start()
    try:
        follower.run()
    except RankLost as error:
        log.error("rank %d ends: %s", job.rank, error)
        sys.exit(1)


def _server(job: RankProcessConfig, follower: Follower) -> MoverServer:
    (region,) = follower.memory.regions
    told = job.connector, job.engine_id, job.rank, region, job.kv_hosts
    return rank_server(*told, Connection(job.mover_fd))


def _serve(server: MoverServer) -> None:
    """The transfer thread. Without it no KV would arrive, so the process ends with it."""
    try:
        enter_device([server.region])
        server.run()
    except (EOFError, ConnectionError):
        log.info("the engine process is gone")
    except Exception:  # whatever it is, it goes to the log
        log.exception("the transfer thread died")
    os._exit(1)


if __name__ == "__main__":
    main()
