"""Counts connections that ended without a message, which ZMQ does not report."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import zmq
from zmq.utils.monitor import parse_monitor_message

DESCRIPTOR = int(zmq.SRCFD)  # a plain number is looked up in half the time


@dataclass(slots=True)
class WordlessConnections:
    """Noise, half a handshake and too long a message all end so, and ZMQ does not say why.

    Nor does it of a node that leaves, so a connection counts unless a message came by it. ZMQ
    holds 2,000 endings that nobody reads, and then nothing comes in any more: whoever reads
    messages reads these, and their context is ended without asking ZMQ to stop telling, for
    which it would wait.
    """

    _monitor: zmq.Socket[bytes]
    _speakers: dict[int, list[bytes]] = field(default_factory=dict)  # by descriptor, in turn
    _unjudged: list[int] = field(default_factory=list)  # descriptors, read and not yet judged

    @classmethod
    def of(cls, socket: zmq.Socket[bytes]) -> Self:
        """Of all its connections from now on."""
        return cls(socket.get_monitor_socket(zmq.EVENT_DISCONNECTED))

    @property
    def descriptor(self) -> int:
        """Readable once there may be some. ZMQ tells only once, so all are read before."""
        descriptor = self._monitor.getsockopt(zmq.FD)
        assert isinstance(descriptor, int)
        return descriptor

    def note_message(self, frames: Sequence[zmq.Frame]) -> None:
        """A message that came, as a ROUTER reads it: by whom, to begin with.

        Of two that have the same descriptor, one after the other, both may have spoken before
        the first one's ending is read.
        """
        try:
            descriptor = frames[-1].get(DESCRIPTOR)
        except zmq.ZMQError:
            return  # noise that passes for ZMQ of before version 3, which does not say it
        speaker = frames[0].bytes
        if (speakers := self._speakers.get(descriptor)) is None:
            self._speakers[descriptor] = [speaker]
        elif speaker not in speakers:
            speakers.append(speaker)

    def read(self, most: int) -> int:
        """How many have ended and are not judged yet; so many at most."""
        while len(self._unjudged) < most:
            try:
                told = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._unjudged.append(parse_monitor_message(told)["value"])
        return len(self._unjudged)

    def count_wordless(self) -> int:
        """How many of those brought no message. All that came before `read` has to be known."""
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
        """Hear of no more. The context has to be terminated next."""
        self._monitor.close(linger=0)
