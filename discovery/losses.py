"""When nodes were lost: they fell silent, and had not said that they stop."""

from dataclasses import dataclass, field

from discovery.registration import Registration, Role, State


@dataclass(slots=True)
class Losses:
    """`last`: when a node of each role was lost last; a role is missing if none ever was."""

    last: dict[Role, float] = field(default_factory=dict)

    def note_silent(self, said: Registration, *, now: float) -> None:
        """A node with this last registration is forgotten, because it is silent."""
        if said.state is State.READY:
            self.last[said.type] = now
