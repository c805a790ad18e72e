"""The other ranks of an engine (`--tensor-parallel-size`): the engine process starts them.

Each is tied to it by a pair of sockets, which is the rank's standard input: when one of the two
processes ends, however that may be, so does the other, and with it all ranks and the node.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from torch._C._distributed_c10d import TCPStore

from discovery.lifeline import end_with
from engine.ranks.channel import Channel
from engine.ranks.crew import Crew
from engine.settings import EngineConfig
from node.niceness import set_niceness

Process = subprocess.Popen[bytes]
RANK_PROCESS = "node.rank_process"
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankJob:
    """All that a rank is told at its start, on its standard input; files are inherited."""

    engine: EngineConfig
    rank: int
    store_port: int
    channel_fd: int
    memory_fd: int
    log_level: str


@dataclass(frozen=True, slots=True)
class Ranks:
    """All but the one that leads."""

    crew: Crew
    processes: Sequence[Process]

    def set_niceness(self, niceness: int) -> None:
        """A step is as slow as its slowest rank, so all give way alike."""
        for process in self.processes:
            set_niceness(niceness, process.pid)


def start_ranks(config: EngineConfig, log_level: str) -> Ranks:
    """From now on the end of one of them ends this process."""
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    channels, fds, processes = list[Channel](), list[int](), list[Process]()
    for rank in range(1, config.tensor_parallel_size):
        ours, theirs = socket.socketpair()
        fds.append(os.memfd_create(f"kv of rank {rank}"))
        job = RankJob(
            engine=config,
            rank=rank,
            store_port=store.port,
            channel_fd=theirs.fileno(),
            memory_fd=fds[-1],
            log_level=log_level,
        )
        processes.append(_start(job))
        theirs.close()
        channels.append(Channel(ours))
    return Ranks(Crew(channels, store, fds), processes)


def _start(job: RankJob) -> Process:
    ours, theirs = socket.socketpair()
    with contextlib.closing(theirs):
        process = subprocess.Popen(
            [sys.executable, "-m", RANK_PROCESS],
            stdin=theirs.fileno(),
            pass_fds=(job.channel_fd, job.memory_fd),
        )
    ours.sendall(msgspec.json.encode(job) + b"\n")
    end_with(ours.detach(), f"rank {job.rank} is gone")
    return process
