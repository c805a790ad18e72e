"""The sources that a sink has met: where their memory is, and when they were last used."""

from collections.abc import Container
from dataclasses import dataclass, field

from kv_transfer.errors import LayoutMismatch, PeerUnreachable, TransferError
from kv_transfer.wire import BEAT_S, Refused, TurnedAway, Welcome

Address = tuple[str, int]
IDLE_S = 60.0


@dataclass(slots=True)
class _Source:
    used_at: float
    greeted_at: float | None = None
    welcome: Welcome | None = None


def rejection_error(message: Refused | TurnedAway) -> TransferError:
    """The error for pulls from a source that answered this."""
    if isinstance(message, Refused):
        return LayoutMismatch(message.reason)
    return PeerUnreachable(f"the source refused us: {message.reason}")


@dataclass(slots=True)
class KnownSources:
    """One entry for each address that a ticket named, until it is unused for IDLE_S."""

    _met: dict[Address, _Source] = field(default_factory=dict)

    def mark_used(self, address: Address, *, now: float) -> None:
        """Record that this source is in use."""
        self._met.setdefault(address, _Source(now)).used_at = now

    def forget_idle(self, busy: Container[Address], *, now: float) -> list[Address]:
        """Forget and return addresses that were not used for IDLE_S, except the `busy` ones."""
        late = [at for at, one in self._met.items() if now - one.used_at >= IDLE_S]
        idle = [at for at in late if at not in busy]
        for address in idle:
            del self._met[address]
        return idle

    def should_say_hello(self, address: Address, engine_id: str | None, *, now: float) -> bool:
        """Whether to say Hello: at first, when another engine has taken the address, or when no
        Welcome came for BEAT_S, since either message may have been lost.
        """
        source = self._met[address]
        waits = source.greeted_at is not None and now - source.greeted_at < BEAT_S
        if waits or self.welcome_of(address, engine_id) is not None:
            return False
        source.greeted_at = now
        return True

    def store_welcome(self, address: Address, welcome: Welcome) -> None:
        """Keep what the source said about its memory.

        If it says so again, as it does for a Hello that was repeated, the first Welcome is
        kept: it stands for the link, and reads over that are known by it.
        """
        if source := self._met.get(address):
            source.greeted_at = None
            if not self.knows(address, welcome):
                source.welcome = welcome

    def knows(self, address: Address, welcome: Welcome) -> bool:
        """Whether this source has sent the same Welcome before."""
        host = self.welcome_of(address)
        return host is not None and host.engine_id == welcome.engine_id

    def welcome_of(self, address: Address, engine_id: str | None = None) -> Welcome | None:
        """What the source said about its memory, if it has, and is this engine (None: any)."""
        source = self._met.get(address)
        if source is None or source.welcome is None:
            return None
        return source.welcome if engine_id in (None, source.welcome.engine_id) else None

    def forget(self, address: Address) -> None:
        """Discard its Welcome so that Hello is said again; its socket may still exist."""
        if source := self._met.get(address):
            source.greeted_at, source.welcome = None, None
