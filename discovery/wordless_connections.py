"""Counts connections that ended without a message, which ZMQ does not report."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import zmq
from zmq.utils.monitor import parse_monitor_message

DESCRIPTOR = int(zmq.SRCFD)  # a plain number is looked up in half the time


@dataclass(slots=True)
class WordlessConnections:
    """Counts ended connections by which no message came.

    Noise, an incomplete handshake and an oversized message all end this way, and ZMQ reports
    neither the reason nor whether it was a node that left. ZMQ buffers 2,000 ends of
    connections; if nobody reads them, it stops receiving altogether. So they are read together
    with the messages, and the context is terminated without asking ZMQ to stop monitoring, for
    which it would wait.
    """

    _monitor: zmq.Socket[bytes]
    _speakers: dict[int, list[bytes]] = field(default_factory=dict)  # by descriptor, in order
    # descriptors whose end was read but not judged yet
    _unjudged: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, socket: zmq.Socket[bytes]) -> Self:
        """Monitor all connections of a socket from now on."""
        return cls(socket.get_monitor_socket(zmq.EVENT_DISCONNECTED))

    @property
    def descriptor(self) -> int:
        """Readable once some have ended. ZMQ signals only once, so all must be read before."""
        descriptor = self._monitor.getsockopt(zmq.FD)
        assert isinstance(descriptor, int)
        return descriptor

    def note_message(self, frames: Sequence[zmq.Frame]) -> None:
        """Note who sent a message, as a ROUTER receives it.

        If two connections have the same descriptor one after the other, both may have sent
        messages before the first one's end is read.
        """
        try:
            descriptor = frames[-1].get(DESCRIPTOR)
        except zmq.ZMQError:
            return  # noise that passes for ZMQ before version 3, which has no descriptor
        speaker = frames[0].bytes
        if (speakers := self._speakers.get(descriptor)) is None:
            self._speakers[descriptor] = [speaker]
        elif speaker not in speakers:
            speakers.append(speaker)

    def read(self, most: int) -> int:
        """Read ends of connections; returns how many are not judged yet, at most `most`."""
        while len(self._unjudged) < most:
            try:
                told = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._unjudged.append(parse_monitor_message(told)["value"])
        return len(self._unjudged)

    def count_wordless(self) -> int:
        """How many of those brought no message; all messages before `read` must be noted."""
        wordless = 0
        for descriptor in self._unjudged:
            if speakers := self._speakers.pop(descriptor, None):
                del speakers[0]
            else:
                wordless += 1
            if speakers:
                self._speakers[descriptor] = speakers
        self._unjudged.clear()
        return wordless

    def close(self) -> None:
        """Stop monitoring. The context must be terminated next."""
        self._monitor.close(linger=0)
