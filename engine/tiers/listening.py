"""How others keep track of what the tiers hold."""

from typing import Protocol

from engine.cache_events import Medium


class TierListener(Protocol):
    """Is told of each block that a tier gets, and then that it loses it."""

    def entered(self, key: bytes, medium: Medium) -> None:
        """The block can be read from this tier now."""

    def left(self, key: bytes, medium: Medium) -> None:
        """The block cannot be read from this tier any more."""


class NobodyListens:
    """The listener of tiers that nobody keeps track of."""

    def entered(self, key: bytes, medium: Medium) -> None:
        """See TierListener, here and below."""

    def left(self, key: bytes, medium: Medium) -> None:
        """Nothing to do."""
