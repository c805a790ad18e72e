"""A client at the end of a tap."""

from dataclasses import dataclass, field


@dataclass
class Client:
    """Takes tokens, unless there are more than it has room for."""

    room: int = 9
    heard: list[int] = field(default_factory=list)

    def take(self, tokens: tuple[int, ...]) -> bool:
        if len(tokens) > self.room:
            return False
        self.heard += tokens
        return True
