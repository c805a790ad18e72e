"""How long a node's reply may take to make progress. Pure.

Progress is the head, a whole event or comment, or `PART_BYTES` of something larger. Mere bytes
are none: a node that sends one each second would never be silent, and never answer. An event
without tokens counts: it may keep a connection open during a long prefill.
"""

import math
from dataclasses import dataclass, field

PART_BYTES = 256 << 10
FRAMING_BYTES = 16  # the end of a chunk, which may come behind the event in it


@dataclass(frozen=True, slots=True)
class ReplyTimeouts:
    """Seconds without progress: until the reply's head, and from then on.

    `math.inf` is no limit: only the loss of the connection ends such a wait. `part_s` limits
    what has begun, for nodes that may be silent for longer but write what they write at once.
    """

    head_s: float
    silence_s: float
    part_s: float = math.inf


@dataclass(slots=True)
class ProgressWatch:
    """One reply's progress, from when it was asked for at `progress_at`."""

    timeouts: ReplyTimeouts
    progress_at: float
    _silence_s: float = field(init=False)
    _data_at: float = field(init=False)
    _begun_at: float = field(init=False)
    _bytes: int = 0  # since the latest progress

    def __post_init__(self) -> None:
        """The head comes first."""
        self._silence_s = self.timeouts.head_s
        self._data_at = self._begun_at = self.progress_at

    def note_data(self, count: int, now: float) -> None:
        """Count bytes that have come."""
        self._data_at = now
        if self._bytes <= FRAMING_BYTES:
            self._begun_at = now
        self._bytes += count
        if self._bytes >= PART_BYTES:
            self.note_progress(now)

    def note_head(self, now: float, more: int) -> None:
        """The head is complete, and so many bytes came behind it."""
        self._silence_s = self.timeouts.silence_s
        self.note_progress(now, more)

    def note_progress(self, now: float, more: int = 0) -> None:
        """Something is complete, or the node could not send; `more` bytes came behind it."""
        self.progress_at = self._data_at = self._begun_at = now
        self._bytes = more

    def left_s(self, now: float, *, unread: bool) -> float:
        """Seconds until the node counts as silent; inf: no limit holds now.

        While bytes are `unread`, it is not known whether they are progress.
        """
        if unread:
            return self._data_at + self._silence_s - now
        left = self.progress_at + self._silence_s - now
        if self._bytes > FRAMING_BYTES:
            left = min(left, self._begun_at + self.timeouts.part_s - now)
        return left
