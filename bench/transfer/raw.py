"""Floors: NIXL called by hand, a plain socket, and memcpy. Nobody could be much faster."""

import ctypes
import math
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bench.transfer.memory import Memory
from kv_transfer.movers.nixl_build import api

if TYPE_CHECKING:
    from nixl_cu12._api import nixl_agent, nixl_prepped_dlist_handle

CPU_TRANSPORTS = "tcp,sm"  # as the connector has it
PATIENCE_S = 0.005


@dataclass(slots=True)
class RawNixl:
    """A separate NIXL agent over the same memory, with the same transports."""

    agent: "nixl_agent"
    memory: Memory
    peer: str = ""
    _lists: tuple["nixl_prepped_dlist_handle", ...] = ()

    @classmethod
    def open(cls, name: str, memory: Memory) -> "RawNixl":
        """Open an agent; UCX_TLS chooses the transports, as for the connector."""
        os.environ.setdefault("UCX_TLS", CPU_TRANSPORTS)
        agent = api.nixl_agent(
            name, api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        )
        agent.register_memory([(memory.address, memory.num_bytes, 0, "")], "DRAM")
        return cls(agent, memory)

    @property
    def card(self) -> bytes:
        """The metadata that the other side needs."""
        return bytes(self.agent.get_agent_metadata())

    @property
    def driven(self) -> bool:
        """Whether a read needs the other side to poll; not with shared memory."""
        return "sm" not in os.environ.get("UCX_TLS", CPU_TRANSPORTS).split(",")

    def drive(self) -> None:
        """Make progress for the other side."""
        self.agent.get_new_notifs()

    def meet(self, card: bytes, address: int) -> None:
        """Prepare descriptor lists of all blocks, on both sides."""
        self.peer = self.agent.add_remote_agent(card)
        here, there = self._rows(self.memory.address), self._rows(address)
        self._lists = (
            self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", here, "DRAM"),
            self.agent.prep_xfer_dlist(self.peer, there, "DRAM"),
        )

    def read(
        self, theirs: Sequence[int], ours: Sequence[int], drive: Callable[[], None]
    ) -> float:
        """Seconds to read these blocks, from prepared lists, by busy polling.

        If it makes no progress, `drive` is called once: a connection that is still being set up
        needs the other side, whichever transport moves the bytes.
        """
        here, there = self._lists
        at, of = np.array(ours, dtype=np.int32), np.array(theirs, dtype=np.int32)
        since = time.perf_counter()
        patience = since + PATIENCE_S
        handle = self.agent.make_prepped_xfer("READ", here, at, there, of)
        state = self.agent.transfer(handle)
        while state == "PROC":
            state = self.agent.check_xfer_state(handle)
            if time.perf_counter() > patience:
                patience = math.inf
                drive()
        took = time.perf_counter() - since
        assert state == "DONE"
        handle.release()
        return took

    def close(self) -> None:
        """Release the lists."""
        for prepared in self._lists:
            prepared.release()

    def _rows(self, address: int) -> np.ndarray:
        size, count = self.memory.block_bytes, self.memory.num_bytes // self.memory.block_bytes
        starts = address + np.arange(count, dtype=np.uint64) * np.uint64(size)
        rows = np.empty((count, 3), dtype=np.uint64)
        rows[:, 0], rows[:, 1], rows[:, 2] = starts, size, 0
        return rows


@dataclass(slots=True)
class PlainSocket:
    """One connection over loopback; the other side sends everything at once."""

    connection: socket.socket
    memory: Memory

    def receive(self, num_bytes: int) -> None:
        """Receive straight into memory, in order."""
        left = self.memory.bytes[:num_bytes]
        while left:
            left = left[self.connection.recv_into(left) :]


@dataclass(slots=True)
class Copy:
    """memcpy within this process, one thread."""

    memory: Memory
    _other: Memory = field(init=False)

    def __post_init__(self) -> None:
        self._other = Memory(self.memory.num_bytes, self.memory.block_bytes)

    def copy(self, num_bytes: int) -> float:
        """Seconds to copy `num_bytes`."""
        since = time.perf_counter()
        ctypes.memmove(self.memory.address, self._other.address, num_bytes)
        return time.perf_counter() - since
