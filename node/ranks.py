"""Starts the follower ranks of an engine (`--tensor-parallel-size`), one process each.

A socket pair, which is the rank's standard input, ties it to the engine process (rank 0): when
one of the two ends in any way, so does the other, and with it all ranks and the node.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import msgspec
from torch._C._distributed_c10d import TCPStore

from discovery.lifeline import end_with
from engine.ranks.channel import Channel
from engine.ranks.links import FollowerLinks
from engine.settings import EngineConfig
from node.ipc import EngineProcessConfig
from node.niceness import set_niceness

Process = subprocess.Popen[bytes]
RANK_PROCESS = "node.rank_process"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProcessConfig:
    """The settings of a rank, which it reads from its standard input; `*_fd` are inherited."""

    engine: EngineConfig
    rank: int
    store_port: int
    channel_fd: int
    mover_fd: int
    memory_fd: int
    connector: str
    engine_id: str
    kv_hosts: tuple[str, str]
    log_level: str
    lossy_log: bool


@dataclass(frozen=True, slots=True)
class Ranks:
    """The follower ranks of an engine: all but rank 0."""

    followers: FollowerLinks
    movers: Sequence[Connection]
    processes: Sequence[Process]

    def set_niceness(self, niceness: int) -> None:
        """Set the niceness of all ranks, since a step is as slow as its slowest rank."""
        for process in self.processes:
            set_niceness(niceness, process.pid)


def start_ranks(job: EngineProcessConfig) -> Ranks:
    """Start the processes; from now on this process ends if one of them does."""
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    ranks = range(1, job.engine.tensor_parallel_size)
    pairs = [socket.socketpair() for _ in ranks]
    pipes = [Pipe() for _ in ranks]
    fds = [os.memfd_create(f"kv of rank {rank}") for rank in ranks]
    processes = list[Process]()
    for rank, (_, channel), (_, mover), memory_fd in zip(ranks, pairs, pipes, fds, strict=True):
        config = RankProcessConfig(
            engine=job.engine,
            rank=rank,
            store_port=store.port,
            channel_fd=channel.fileno(),
            mover_fd=mover.fileno(),
            memory_fd=memory_fd,
            connector=job.connector,
            engine_id=job.engine_id,
            kv_hosts=(job.kv_host, job.advertise_host),
            log_level=job.log_level,
            lossy_log=job.lossy_log,
        )
        processes.append(_start(config))
        channel.close()
        mover.close()
    followers = FollowerLinks([Channel(ours) for ours, _ in pairs], store, fds)
    return Ranks(followers, [ours for ours, _ in pipes], processes)


def _start(job: RankProcessConfig) -> Process:
    ours, theirs = socket.socketpair()
    with contextlib.closing(theirs):
        process = subprocess.Popen(
            [sys.executable, "-m", RANK_PROCESS],
            stdin=theirs.fileno(),
            pass_fds=(job.channel_fd, job.mover_fd, job.memory_fd),
        )
    ours.sendall(msgspec.json.encode(job) + b"\n")
    end_with(ours.detach(), f"rank {job.rank} is gone")
    return process
