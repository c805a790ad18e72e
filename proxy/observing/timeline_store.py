"""Stores the timelines of recent requests, and finds those of running ones. Pure.

Finished ones are stored as bytes, which bounds memory exactly and gives the garbage collector
nothing to traverse.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from proxy.timeline.exchange import HttpExchange
from proxy.timeline.record import RequestRecord, record_of

MOST_KEPT, MOST_BYTES = 1_000, 32 << 20
PREFIX = re.compile(r"(?:chatcmpl|cmpl)-|(?:resp|msg)_")
CHOICE = re.compile(r"-\d+")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RequestRecord)
Key = tuple[str, str]  # owner and request id


@dataclass(slots=True)
class TimelineStore:
    """At most `most` requests of `most_bytes` in all; the oldest are evicted. 0 stores none.

    Of two requests with the same id and owner the later one is stored.
    """

    most: int
    most_bytes: int = MOST_BYTES
    num_bytes: int = 0
    _running: dict[HttpExchange, None] = field(default_factory=dict)
    _over: dict[Key, bytes] = field(default_factory=dict)

    def begin(self, exchange: HttpExchange) -> None:
        """The request can be found from now on."""
        if self.most:
            self._running[exchange] = None

    def end(self, exchange: HttpExchange) -> None:
        """The request is over: store it, unless it failed before it was tokenized."""
        self._running.pop(exchange, None)
        if not (self.most and (exchange.choices or exchange.tokenized)):
            return
        record = record_of(exchange)
        key = exchange.owner, record.request_id
        self._forget(key)
        data = _encoder.encode(record)
        self._over[key] = data
        self.num_bytes += len(data)
        while len(self._over) > self.most or self.num_bytes > self.most_bytes:
            self._forget(next(iter(self._over)))

    def find(self, name: str, owner: str | None) -> RequestRecord | None:
        """The latest record with this id, which may be that of a request, its answer or one
        choice.

        `owner`: only requests with this key; None: any.
        """
        bare = PREFIX.sub("", name, count=1) if PREFIX.match(name) else name
        for one in dict.fromkeys((name, bare)):
            if found := self._find(one, owner):
                return found
        base, dash, index = bare.rpartition("-")
        return self._find(base, owner) if CHOICE.fullmatch(dash + index) else None

    def _find(self, name: str, owner: str | None) -> RequestRecord | None:
        for exchange in reversed(self._running):
            if owner in (None, exchange.owner) and name in _names(exchange):
                return record_of(exchange)
        if owner is not None:
            data = self._over.get((owner, name))
        else:
            data = next(
                (self._over[key] for key in reversed(self._over) if key[1] == name), None
            )
        return _decoder.decode(data) if data else None

    def _forget(self, key: Key) -> None:
        self.num_bytes -= len(self._over.pop(key, b""))


def _names(exchange: HttpExchange) -> Iterator[str]:
    """The ids of a running request; until its answer begins only those of its choices."""
    yield exchange.request_id
    for timeline in exchange.choices:
        yield timeline.request.request_id
    if exchange.choices:
        yield exchange.choices[0].request.request_id.removesuffix("-0")
