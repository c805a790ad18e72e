"""The timelines of the last requests, and of those that run. Pure.

What is over is kept as bytes: that bounds memory exactly, and gives the garbage collector
nothing to walk through.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from proxy.timeline.exchange import Exchange
from proxy.timeline.record import Record, record_of

MOST_KEPT, MOST_BYTES = 1_000, 32 << 20
PREFIX = re.compile(r"(?:chatcmpl|cmpl)-|(?:resp|msg)_")
CHOICE = re.compile(r"-\d+")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)
Key = tuple[str, str]  # whose it is, and its id


@dataclass(slots=True)
class KeptTimelines:
    """`most` requests at most, and `most_bytes`; the oldest go first. 0 keeps none.

    Of two requests with the same id and owner the later is kept.
    """

    most: int
    most_bytes: int = MOST_BYTES
    num_bytes: int = 0
    _running: dict[Exchange, None] = field(default_factory=dict)
    _over: dict[Key, bytes] = field(default_factory=dict)

    def begin(self, exchange: Exchange) -> None:
        """It can be found from now on."""
        if self.most:
            self._running[exchange] = None

    def end(self, exchange: Exchange) -> None:
        """It is over: nothing is stamped any more. Those that never came to be are dropped."""
        self._running.pop(exchange, None)
        if not (self.most and (exchange.stories or exchange.tokenized)):
            return
        record = record_of(exchange)
        key = exchange.owner, record.request_id
        self._forget(key)
        data = _encoder.encode(record)
        self._over[key] = data
        self.num_bytes += len(data)
        while len(self._over) > self.most or self.num_bytes > self.most_bytes:
            self._forget(next(iter(self._over)))

    def find(self, name: str, owner: str | None) -> Record | None:
        """The latest of that name: the id of a request, of its answer or of one choice.

        `owner`: whose it has to be; None: anybody's.
        """
        bare = PREFIX.sub("", name, count=1) if PREFIX.match(name) else name
        for one in dict.fromkeys((name, bare)):
            if found := self._find(one, owner):
                return found
        base, dash, index = bare.rpartition("-")
        return self._find(base, owner) if CHOICE.fullmatch(dash + index) else None

    def _find(self, name: str, owner: str | None) -> Record | None:
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


def _names(exchange: Exchange) -> Iterator[str]:
    """Until the answer begins only its choices' are known."""
    yield exchange.request_id
    for story in exchange.stories:
        yield story.request.request_id
    if exchange.stories:
        yield exchange.stories[0].request.request_id.removesuffix("-0")
