"""The sources that a sink has met: where their memory is, and when they were last needed."""

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
    """What it means for who pulls from a source that said this."""
    if isinstance(message, Refused):
        return LayoutMismatch(message.reason)
    return PeerUnreachable(f"the source refused us: {message.reason}")


@dataclass(slots=True)
class KnownSources:
    """One entry for each address that a ticket named, until it is long unused."""

    _met: dict[Address, _Source] = field(default_factory=dict)

    def mark_used(self, address: Address, *, now: float) -> None:
        """Somebody needs this one."""
        self._met.setdefault(address, _Source(now)).used_at = now

    def forget_idle(self, busy: Container[Address], *, now: float) -> list[Address]:
        """Forget, and tell, those that nobody needed for long, but for the `busy`."""
        late = [at for at, one in self._met.items() if now - one.used_at >= IDLE_S]
        idle = [at for at in late if at not in busy]
        for address in idle:
            del self._met[address]
        return idle

    def should_say_hello(self, address: Address, engine_id: str | None, *, now: float) -> bool:
        """Whether to say Hello: once, and again when another engine took the address, or when
        there was no Welcome for a while: one of the two may have been lost.
        """
        source = self._met[address]
        waits = source.greeted_at is not None and now - source.greeted_at < BEAT_S
        if waits or self.welcome_of(address, engine_id) is not None:
            return False
        source.greeted_at = now
        return True

    def store_welcome(self, address: Address, welcome: Welcome) -> None:
        """It has told where its memory is."""
        if source := self._met.get(address):
            source.greeted_at, source.welcome = None, welcome

    def knows(self, address: Address, welcome: Welcome) -> bool:
        """Whether this one has told us before, and nothing is new."""
        host = self.welcome_of(address)
        return host is not None and host.engine_id == welcome.engine_id

    def welcome_of(self, address: Address, engine_id: str | None = None) -> Welcome | None:
        """Where its memory is, once it has told; of no other engine, if one is named."""
        source = self._met.get(address)
        if source is None or source.welcome is None:
            return None
        return source.welcome if engine_id in (None, source.welcome.engine_id) else None

    def forget(self, address: Address) -> None:
        """What it told is void: say Hello anew. A socket may still be there."""
        if source := self._met.get(address):
            source.greeted_at, source.welcome = None, None
