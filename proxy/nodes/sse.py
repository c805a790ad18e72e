"""Splits bytes, which may be cut anywhere, into server-sent events. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from api.wire import WireError

LONGEST_EVENT = 16 << 20


@dataclass(slots=True)
class SseSplitter:
    """Holds an event whose end has not come yet, at most `longest` bytes."""

    longest: int = LONGEST_EVENT
    _rest: bytes = b""

    def feed(self, data: bytes) -> Sequence[bytes]:
        """The data lines of each event that is now complete; comments are dropped."""
        if not self._rest and _is_one(data):
            return [data[:-2]]
        data = self._rest + data if self._rest else data
        if b"\r" in data:  # one at the very end may be half of a line end
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        if len(self._rest) > self.longest:
            raise WireError(f"an event of more than {self.longest} bytes")
        found = [_data_of(event) for event in events]
        return [data for data in found if data]


def _is_one(data: bytes) -> bool:
    """Whether it is one event on one line, as it nearly always is."""
    whole = data.startswith(b"data:") and data.endswith(b"\n\n")
    return whole and data.count(b"\n") == 2 and b"\r" not in data


def _data_of(event: bytes) -> bytes:
    """The data lines of an event, which is nearly always one line."""
    if b"\n" not in event:
        return event if event.startswith(b"data:") else b""
    return b"\n".join(line for line in event.split(b"\n") if line.startswith(b"data:"))
