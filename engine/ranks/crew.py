"""The ranks that follow, as the one that leads sees them."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch._C._distributed_c10d import TCPStore  # torch.distributed gives it no type

from engine.errors import RankLost
from engine.ranks.channel import Channel
from engine.ranks.steps import ClearBehind, ToRank, encode
from engine.sharding.group import STALL_S

DONE = b"done"


@dataclass(frozen=True, slots=True)
class Crew:
    """A channel to each rank that follows, from rank 1 on; all meet at `store`."""

    channels: Sequence[Channel]
    store: TCPStore
    memory_fds: Sequence[int] = ()

    @property
    def size(self) -> int:
        """How many ranks there are, with the one that leads."""
        return len(self.channels) + 1

    def tell(self, message: ToRank) -> None:
        """To all; they do it in the order in which they are told. Raises RankLost."""
        frame = encode(message)
        for rank, channel in enumerate(self.channels, 1):
            try:
                channel.send(frame)
            except OSError as error:
                raise RankLost(f"rank {rank} does not listen: {error!r}") from error

    def hear(self) -> Sequence[bytes]:
        """What each has to say; raises RankLost."""
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

    def go(self, stall_s: float = STALL_S) -> None:
        """All are loaded: from now on nobody may be so late."""
        for channel in self.channels:
            channel.socket.settimeout(stall_s)

    def clear_behind(self, block: int, tokens: int) -> None:
        """On every other rank, before this returns: then others may write to the block."""
        self.tell(ClearBehind(block, tokens))
        self.hear()


@dataclass(frozen=True, slots=True)
class Post:
    """What a rank that follows has of its leader; `memory_fd` is an empty file to be shared."""

    channel: Channel
    store: TCPStore
    memory_fd: int
