"""Splits bytes, which may be cut anywhere, into server-sent events. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from api.wire import WireError
from proxy.nodes.answer_size import LEAST_LIMIT


@dataclass(slots=True)
class SseSplitter:
    """Holds an event whose end has not come yet, at most `longest` bytes."""

    longest: int = LEAST_LIMIT
    any_ended: bool = False  # the latest bytes ended more than empty lines: say, a comment
    _rest: bytearray = field(default_factory=bytearray)

    @property
    def num_held(self) -> int:
        """Bytes of an event whose end has not come."""
        return len(self._rest)

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The data lines of each event that is now complete; comments are dropped."""
        if not self._rest and _is_one(data):
            return [data[:-2]]
        ended = _ends_any(bytes(self._rest[-2:]) + data)
        self._rest += data
        events = self._take_whole() if ended else []
        self.any_ended = any(events)
        if len(self._rest) > self.longest:
            raise WireError(f"an event of more than {self.longest} bytes")
        found = [_data_of(event) for event in events]
        return [data for data in found if data]

    def _take_whole(self) -> list[bytes]:
        data = bytes(self._rest)
        if b"\r" in data:  # one at the very end may be half of a line end
            data = data.replace(b"\r\n", b"\n")
        *events, rest = data.split(b"\n\n")
        self._rest = bytearray(rest)
        return events


def _ends_any(data: bytes) -> bool:
    """Whether an event may end here: only then all that is held is looked at."""
    return b"\n\n" in data or b"\n\r\n" in data


def _is_one(data: bytes) -> bool:
    """Whether it is one event on one line, as it nearly always is."""
    whole = data.startswith(b"data:") and data.endswith(b"\n\n")
    return whole and data.count(b"\n") == 2 and b"\r" not in data


def _data_of(event: bytes) -> bytes:
    """The data lines of an event, which is nearly always one line."""
    if b"\n" not in event:
        return event if event.startswith(b"data:") else b""
    return b"\n".join(line for line in event.split(b"\n") if line.startswith(b"data:"))
