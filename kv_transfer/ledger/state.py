"""One hand-over, from its ticket to its last word. Both sides go through the same states.

               the source                    the sink
    QUEUED     no block is final             was told of none
      │        extend                        News
    FILLING    some are: whoever asks        reads them while it hears of more,
      │        is told                       if it has room for them
      │        seal                          News, sealed
    SEALED     all are; nobody has asked     knows of all, and has no room for them
      │        Look                          pull
    PULLING    a sink has the ticket         reads the last of them
      │          │                           all are here: Settle
      │          │                         SETTLING   waits for the source's word
      │        Settle                        Confirmed
    SETTLED    the blocks are free           the blocks are filled

    A sink that leaves a ticket to another ends as if that had been withdrawn; the source stays
    where it is, as it does where another sink takes the ticket.

    … or, from any of these:
    ENDING       │                         a read may still write, or no job asked for it yet
      │          │                           the last read ends
    WITHDRAWN  withdrawn, or abandoned       abandoned
    EXPIRED    nobody asked in time          the source's lease was over
    FAILED                                   no way to the source, or no match

Each side keeps a state of its own, and they agree on one thing only: it is SETTLED at the
sink only if it was SETTLED at the source, in between a Settle and its Confirmed. The other
way round it may not be: the word was lost, and the sink takes what it has read for void.

The source's blocks are lent from FILLING to its last state, the sink's may be written to from
its `pull` to its last state. Each reaches one last state, once, and is told of it: `Settled`
there, `Arrived` here, but for a ticket that was only held.
"""

from collections.abc import Mapping
from enum import Enum, auto


class IllegalTransition(AssertionError):
    """A book broke its own promise; what a peer says never leads here."""


class HandOverState(Enum):
    """Where a hand-over is; see the module's picture."""

    QUEUED = auto()
    FILLING = auto()
    SEALED = auto()
    PULLING = auto()
    SETTLING = auto()
    ENDING = auto()
    SETTLED = auto()
    WITHDRAWN = auto()
    EXPIRED = auto()
    FAILED = auto()

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        return not NEXT[self]

    def to(self, state: "HandOverState") -> "HandOverState":
        """The next state; raises IllegalTransition where the picture has no such line."""
        if state not in NEXT[self]:
            raise IllegalTransition(f"{self.name} is not followed by {state.name}")
        return state


_BAD_ENDS = frozenset({HandOverState.WITHDRAWN, HandOverState.EXPIRED, HandOverState.FAILED})
_AT_ANY_TIME = _BAD_ENDS | {HandOverState.ENDING}
NEXT: Mapping[HandOverState, frozenset[HandOverState]] = {
    HandOverState.QUEUED: _AT_ANY_TIME | {HandOverState.FILLING, HandOverState.SEALED},
    HandOverState.FILLING: _AT_ANY_TIME | {HandOverState.SEALED},
    HandOverState.SEALED: _AT_ANY_TIME | {HandOverState.PULLING},
    HandOverState.PULLING: _AT_ANY_TIME | {HandOverState.SETTLING, HandOverState.SETTLED},
    HandOverState.SETTLING: _AT_ANY_TIME | {HandOverState.SETTLED},
    HandOverState.ENDING: _BAD_ENDS,
    HandOverState.SETTLED: frozenset(),
    **dict.fromkeys(_BAD_ENDS, frozenset()),
}
