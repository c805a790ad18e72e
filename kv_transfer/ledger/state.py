"""The states of one hand-over, from ticket to end. Both sides go through the same states.

                   the source                    the sink
    QUEUED         no block is final             knows of no block
      │            extend                        News
    FILLING        some blocks are final; a      reads them while more are announced,
      │            sink that asks is told        if it has room for them
      │            seal                          News, sealed
    SEALED         all are final; no sink has    knows of all blocks, but has no room for
      │            asked                         them
      │            Look                          pull
    PULLING        a sink has the ticket         reads the last of them
      │   │                                      all are here: Settle
      │  SETTLING                                waits for the source's answer
      │   │        Settle                        Confirmed
    SETTLED        the blocks are free           the blocks are filled

    … or, from any of these:

    ENDING                                       a read may still write, or no job has asked yet
      │                                          the last read ends
    WITHDRAWN      withdrawn, or abandoned       abandoned
    EXPIRED        nobody asked in time          the source's lease was over
    FAILED                                       source unreachable, or no match

A sink whose bytes do not match gives the ticket back, still FILLING or PULLING, and reads no
more. The source's Gone says whether it still lent the blocks: if not, they hold somebody else's
bytes by now, and the pull ends EXPIRED or WITHDRAWN instead of FAILED.

A sink that leaves a ticket to another sink ends as if it had been withdrawn. The source's state
does not change then, nor when another sink takes the ticket.

Each side keeps its own state. They agree on one thing only: the sink is SETTLED only if the
source was SETTLED, between a Settle and its Confirmed. The reverse need not hold: if the
Confirmed was lost, the sink treats its copy as void.

The source's blocks are lent from FILLING to its final state; the sink's may be written to from
its `pull` to its final state. Each side reaches exactly one final state, and reports it once:
`Settled` at the source, `Arrived` at the sink (except for a ticket that was only held).
"""

from collections.abc import Mapping
from enum import Enum, auto


class IllegalTransition(AssertionError):
    """A book has a bug; no message from a peer can cause this."""


class HandOverState(Enum):
    """The state of a hand-over; see the module's picture."""

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
        """Whether no state follows."""
        return not NEXT[self]

    def to(self, state: "HandOverState") -> "HandOverState":
        """The next state; raises IllegalTransition if the picture has no such transition."""
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
