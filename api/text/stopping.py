"""Finds stop strings, however the text is split into tokens.

All strings are searched for at once (with the Aho-Corasick automaton). Its state is the longest
end of the text that could begin a stop string, so its depth is exactly how much must be held
back. The answer ends with the stop string that is complete first, and at the start of the
longest one that ends there, however the text was cut into pieces.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _State:
    depth: int = 0
    after: "dict[str, _State]" = field(default_factory=dict)
    found: str | None = None  # the longest stop string that ends here
    shorter: "_State | None" = None  # the longest end of this text that is a state too

    @property
    def held(self) -> int:
        """How much of the text may still become part of a stop string."""
        state = self
        while not state.after and state.shorter:
            state = state.shorter
        return state.depth

    def step(self, character: str) -> "_State":
        state = self
        while character not in state.after and state.shorter:
            state = state.shorter
        return state.after.get(character, state)


@dataclass(frozen=True, slots=True)
class StopStrings:
    """The strings that end an answer; shared by all choices of a request."""

    _root: _State

    @classmethod
    def of(cls, strings: Sequence[str]) -> "StopStrings":
        """Build the automaton; a string must not be empty."""
        root = _State()
        for string in strings:
            state = root
            for character in string:
                state = state.after.setdefault(character, _State(state.depth + 1))
            state.found = string
        _link(root)
        return cls(root)

    def matcher(self, *, include: bool = False) -> "StopMatcher":
        """A matcher for one answer; `include`: the stop string is part of the text."""
        return StopMatcher(self._root, include)


@dataclass(slots=True)
class StopMatcher:
    """Looks for stop strings in one answer's text; `found` is the one that ended it."""

    _state: _State
    include: bool
    found: str | None = None
    _held: str = ""
    has_no_strings: bool = field(init=False)

    def __post_init__(self) -> None:
        self.has_no_strings = not self._state.after

    def read(self, piece: str, *, watching: bool = True) -> str:
        """The text to send now. Not `watching`: a stop string that ends here is plain text."""
        if self.has_no_strings:
            return piece
        text, start = self._held + piece, len(self._held)
        if self.found is not None:
            return ""
        for end, character in enumerate(piece, start + 1):
            self._state = self._state.step(character)
            if watching and self._state.found is not None:
                self.found, self._held = self._state.found, ""
                return text[: end if self.include else end - len(self.found)]
        until = len(text) - self._state.held
        self._held = text[until:]
        return text[:until]

    def finish(self) -> str:
        """Return the text that was held back, as no more comes."""
        held, self._held = self._held, ""
        return held


def _link(root: _State) -> None:
    """Shorter states before longer ones, so that `shorter` is complete when it is used."""
    waiting = deque([root])
    while waiting:
        state = waiting.popleft()
        for character, longer in state.after.items():
            longer.shorter = root if state is root else _shorter(state).step(character)
            if longer.found is None:
                longer.found = longer.shorter.found
            waiting.append(longer)


def _shorter(state: _State) -> _State:
    assert state.shorter is not None, "only the root has none"
    return state.shorter
