"""All that a thread waits for at once, and whether there is something to read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import zmq

from kv_transfer.sockets import Wakeup


@dataclass(slots=True)
class Waiting:
    """One poller for good: to build one in each turn takes longer than to ask it."""

    _poller: zmq.Poller = field(default_factory=zmq.Poller)
    _interests: dict[int, int] = field(default_factory=dict)

    def add(self, *readable: "zmq.Socket[bytes] | Wakeup") -> None:
        """Wait for these, too."""
        for one in readable:
            self._poller.register(one, zmq.POLLIN)

    def close(self, socket: "zmq.Socket[bytes]") -> None:
        """Close one of them: it must not be waited for any more."""
        self._poller.unregister(socket)
        socket.close(linger=0)

    def wait(self, interests: Mapping[int, int], timeout_s: float) -> None:
        """Until one of them is ready; `interests` are file descriptors with their events."""
        if interests != self._interests:
            self._follow(interests)
        self._poller.poll(round(timeout_s * 1000))

    def _follow(self, interests: Mapping[int, int]) -> None:
        for number in self._interests.keys() - interests.keys():
            self._poller.unregister(number)
        for number, events in interests.items():
            self._poller.register(number, events)
        self._interests = dict(interests)


def has_message(of: "zmq.Socket[bytes]") -> bool:
    """Whether `recv` would not wait; much cheaper than to poll."""
    events = of.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return bool(events & zmq.POLLIN)
