"""Everything that a thread waits for at once, and which of it is ready."""

import math
import select
from collections.abc import Mapping
from dataclasses import dataclass, field

Ready = Mapping[int, int]
"""File descriptors and what they are ready for: select.POLLIN, select.POLLOUT, errors."""


@dataclass(slots=True)
class Poller:
    """One permanent poller: building one in each turn would take longer than polling it."""

    _poller: "select.poll" = field(default_factory=lambda: select.poll())
    _interests: dict[int, int] = field(default_factory=dict)

    def watch(self, descriptor: int, events: int = select.POLLIN) -> None:
        """Wait for this descriptor, too; replaces its events if it is watched already."""
        self._interests.pop(descriptor, None)  # its number was an interest's, closed since
        self._poller.register(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching; call it before the descriptor is closed."""
        self._poller.unregister(descriptor)

    def wait(self, interests: Mapping[int, int], timeout_s: float) -> None:
        """Wait until one is ready; `interests` are additional descriptors for this call."""
        if interests != self._interests:
            self._follow(interests)
        self._poller.poll(math.ceil(timeout_s * 1000))

    def ready_now(self) -> Ready:
        """The descriptors that are ready now."""
        return dict(self._poller.poll(0))

    def _follow(self, interests: Mapping[int, int]) -> None:
        for number in self._interests.keys() - interests.keys():
            self._poller.unregister(number)
        for number, events in interests.items():
            self._poller.register(number, events)
        self._interests = dict(interests)
