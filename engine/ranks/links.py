"""The links between rank 0, the leader, and the ranks that follow it."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch._C._distributed_c10d import TCPStore  # torch.distributed gives it no type

from engine.errors import RankLost
from engine.ranks.channel import Channel
from engine.ranks.messages import ClearBehind, RankMessage, encode
from engine.sharding.group import STALL_S

DONE = b"done"


@dataclass(frozen=True, slots=True)
class FollowerLinks:
    """A channel to each follower, from rank 1 on; all ranks rendezvous at `store`."""

    channels: Sequence[Channel]
    store: TCPStore
    memory_fds: Sequence[int] = ()

    @property
    def size(self) -> int:
        """The number of ranks, including the leader."""
        return len(self.channels) + 1

    def broadcast(self, message: RankMessage) -> None:
        """Send a message to every follower; they act in order. Raises RankLost."""
        frame = encode(message)
        for rank, channel in enumerate(self.channels, 1):
            try:
                channel.send(frame)
            except OSError as error:
                raise RankLost(f"rank {rank} does not listen: {error!r}") from error

    def receive_all(self) -> Sequence[bytes]:
        """One frame from each follower; raises RankLost."""
        frames = list[bytes]()
        for rank, channel in enumerate(self.channels, 1):
            try:
                frame = channel.receive()
            except TimeoutError as error:
                raise RankLost(f"rank {rank} does not answer") from error
            if frame is None:
                raise RankLost(f"rank {rank} is gone")
            frames.append(frame)
        return frames

    def set_stall_timeout(self, stall_s: float = STALL_S) -> None:
        """All ranks are loaded: from now on a follower that is `stall_s` late is lost."""
        for channel in self.channels:
            channel.socket.settimeout(stall_s)

    def clear_behind(self, block: int, tokens: int) -> None:
        """Clear a block's end on all followers; when this returns, others may write to it."""
        self.broadcast(ClearBehind(block, tokens))
        self.receive_all()


@dataclass(frozen=True, slots=True)
class LeaderLink:
    """A follower's link to its leader; `memory_fd` is an empty file for its KV memory."""

    channel: Channel
    store: TCPStore
    memory_fd: int
