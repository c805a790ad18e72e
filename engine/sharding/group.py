"""Collectives between ranks within a step (all-reduce and the like), over torch.distributed.

The same calls use gloo on CPUs and NCCL on CUDA devices. The group is an object that is passed
to the layers that need it; torch's global default group is not used.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor
from torch._C._distributed_c10d import (  # torch.distributed gives them no types
    AllgatherOptions,
    TCPStore,
)

from engine.errors import EngineError, RankLost
from engine.sharding.shard import Shard

LOADING_S = 1800.0  # how long ranks wait for one another while they load
STALL_S = 15.0  # a rank that is this late in a step is considered lost, and the others end
LOOPBACK = "127.0.0.1"
RELEASE_S, POLL_S = 0.2, 0.002  # at most, and from look to look: see `RankGroup.__del__`


@dataclass(frozen=True, slots=True, eq=False)
class RankGroup:
    """Collectives over all ranks: each rank makes the same calls in the same order.

    A call raises RankLost once another rank is gone, or late: by LOADING_S at first, by STALL_S
    after `set_stall_timeout`. On a device a call is launched behind earlier work, and can be
    captured in a CUDA graph; there NCCL's own thread detects a late rank, and ends the process.
    `calls` is a dist.ProcessGroup over `backend`, for which torch has no types.
    """

    shard: Shard
    backend: Any
    device: torch.device
    calls: Any = None
    last: list[object] = field(default_factory=list)  # what the last collective was given

    @classmethod
    def connect(cls, store: TCPStore, shard: Shard, device: torch.device) -> "RankGroup":
        """Rendezvous with the other ranks at `store`."""
        kinds, on_gpu = dist.ProcessGroup.BackendType, device.type == "cuda"
        make, kind = (_nccl, kinds.NCCL) if on_gpu else (_gloo, kinds.GLOO)
        backend = make(store, shard, timedelta(seconds=LOADING_S))
        calls: Any = dist.ProcessGroup(store, shard.rank, shard.size)
        calls._set_default_backend(kind)
        calls._register_backend(device, kind, backend)
        return cls(shard, backend, device, calls)

    def set_stall_timeout(self, stall_s: float = STALL_S) -> None:
        """All ranks are loaded: from now on a collective fails after `stall_s`."""
        self.backend._set_default_timeout(timedelta(seconds=stall_s))

    def all_reduce(self, part: Tensor) -> Tensor:
        """Sum `part` [..] over all ranks, in place; every rank has the sum."""
        part = part.contiguous()
        self._end(self.calls.allreduce, [part], _in_line(dist.AllreduceOptions()))
        return part

    def all_reduce_min(self, number: int) -> int:
        """The smallest of the ranks' numbers, on every rank."""
        told, options = torch.tensor([number], device=self.device), dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
        self._end(self.calls.allreduce, [told], _in_line(options))
        return int(told.item())

    def broadcast(self, by_the_first: Tensor) -> Tensor:
        """Copy rank 0's tensor into that of every rank, in place."""
        options = dist.BroadcastOptions()
        options.rootRank = 0
        self._end(self.calls.broadcast, [by_the_first], _in_line(options))
        return by_the_first

    def all_gather_columns(self, part: Tensor, count: int) -> Tensor:
        """Gather [rows, our part of `count` columns] into [rows, count], on every rank."""
        ranks = [Shard(rank, self.shard.size) for rank in range(self.shard.size)]
        widths = [len(rank.part(count)) for rank in ranks]
        part = F.pad(part, (0, max(widths) - part.shape[1])).contiguous()  # equal sizes
        found = part.new_empty(len(ranks) * part.shape[0], part.shape[1])
        self._end(self.calls._allgather_base, found, part, _in_line(AllgatherOptions()))
        each = found.view(len(ranks), *part.shape)
        return torch.cat([one[:, :width] for one, width in zip(each, widths, strict=True)], 1)

    def _end(self, call: Callable[..., Any], *told: object) -> None:
        """Begin a collective, and wait until it is done, or launched on a device."""
        try:
            call(*told).wait()
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            raise RankLost(f"another rank is gone, or late: {why}") from error
        finally:
            if self.device.type == "cpu":
                self.last[:] = told

    def __del__(self) -> None:
        """Let gloo's thread release the tensors of the last collective.

        It needs the interpreter's lock for that, which the destructor of `calls` holds while it
        waits for the thread to end.
        """
        if self.last:
            late = time.monotonic() + RELEASE_S
            while _are_shared(self.last) and time.monotonic() < late:
                time.sleep(POLL_S)
            time.sleep(POLL_S)  # it counts down first, and waits for the lock after that


def _are_shared(told: Iterable[Any]) -> bool:
    """Whether tensors among these, or in lists among these, are held by more than Python."""
    for one in told:
        if isinstance(one, list):
            shared = _are_shared(one)
        else:
            shared = isinstance(one, Tensor) and _holders(one) > 1
        if shared:
            return True
    return False


def _holders(tensor: Any) -> int:  # noqa: ANN401  the count has no public name, thus no type
    """How many hold a tensor; all of Python counts as one."""
    return int(tensor._use_count())


def _in_line(options: Any) -> Any:  # noqa: ANN401  torch has no type for all of them
    """Options with which NCCL runs on the stream of all other work."""
    options.asyncOp = False
    return options


def _gloo(store: TCPStore, shard: Shard, stall: timedelta) -> object:
    """gloo over the loopback interface: all ranks are on one machine.

    One thread, as collectives come one at a time.
    """
    make: Any = dist.ProcessGroupGloo
    options = make._Options()
    options._devices = [make.create_device(hostname=LOOPBACK)]
    options._timeout, options._threads = stall, 1
    return make(store, shard.rank, shard.size, options)


def _nccl(store: TCPStore, shard: Shard, stall: timedelta) -> object:
    """NCCL, which a torch built for CPUs does not have."""
    if not dist.is_nccl_available():
        raise EngineError("--tensor-parallel-size on a CUDA device needs a torch with NCCL")
    make: Any = dist.ProcessGroupNCCL
    options = make.Options()
    options._timeout = stall
    return make(store, shard.rank, shard.size, options)
