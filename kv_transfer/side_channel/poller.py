"""All that a thread waits for at once, and what of it has something to say."""

import math
import select
from collections.abc import Mapping
from dataclasses import dataclass, field

Ready = Mapping[int, int]
"""File descriptors and what they are ready for: select.POLLIN, select.POLLOUT, errors."""


@dataclass(slots=True)
class Poller:
    """One poller for good: to build one in each turn takes longer than to ask it."""

    _poller: "select.poll" = field(default_factory=lambda: select.poll())
    _interests: dict[int, int] = field(default_factory=dict)

    def watch(self, descriptor: int, events: int = select.POLLIN) -> None:
        """Wait for this one, too; for other events if it was watched before."""
        self._poller.register(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Not for this one any more; to be called before it is closed."""
        self._poller.unregister(descriptor)

    def wait(self, interests: Mapping[int, int], timeout_s: float) -> None:
        """Until one of them is ready; `interests` are more file descriptors, for now."""
        if interests != self._interests:
            self._follow(interests)
        self._poller.poll(math.ceil(timeout_s * 1000))

    def ready_now(self) -> Ready:
        """Who is ready now."""
        return dict(self._poller.poll(0))

    def _follow(self, interests: Mapping[int, int]) -> None:
        for number in self._interests.keys() - interests.keys():
            self._poller.unregister(number)
        for number, events in interests.items():
            self._poller.register(number, events)
        self._interests = dict(interests)
