"""The sources that a sink has met: where their memory is, and when they were last needed."""

from collections.abc import Container
from dataclasses import dataclass, field

from kv_transfer.wire import Welcome

Address = tuple[str, int]
IDLE_S = 60.0


@dataclass(slots=True)
class _Source:
    used_at: float
    greeted: bool = False
    welcome: Welcome | None = None


@dataclass(slots=True)
class Sources:
    """One entry for each address that a ticket named, until it is long unused."""

    _met: dict[Address, _Source] = field(default_factory=dict)

    def use(self, address: Address, *, now: float) -> None:
        """Somebody needs this one."""
        self._met.setdefault(address, _Source(now)).used_at = now

    def leave_idle(self, busy: Container[Address], *, now: float) -> list[Address]:
        """Forget, and tell, those that nobody needed for long, but for the `busy`."""
        late = [at for at, one in self._met.items() if now - one.used_at >= IDLE_S]
        idle = [at for at in late if at not in busy]
        for address in idle:
            del self._met[address]
        return idle

    def greet(self, address: Address, engine_id: str | None) -> bool:
        """Whether to say Hello: once, and again when another engine took the address."""
        source = self._met[address]
        known = source.welcome and source.welcome.engine_id
        if source.greeted and (known is None or engine_id in (None, known)):
            return False
        source.greeted, source.welcome = True, None
        return True

    def welcome(self, address: Address, welcome: Welcome) -> None:
        """It has told where its memory is."""
        if source := self._met.get(address):
            source.welcome = welcome

    def host(self, address: Address) -> Welcome | None:
        """Where its memory is, once it has told."""
        source = self._met.get(address)
        return source.welcome if source else None

    def forget(self, address: Address) -> None:
        """What it told is void: say Hello anew. A socket may still be there."""
        if source := self._met.get(address):
            source.greeted, source.welcome = False, None
