"""Which decode node has seen which tokens last: prefill fetches there what it generated.

A conversation is known by its tokens alone: a name for every STRIDE of them, each made from the
one before it and the tokens in between, as a node names its blocks. A turn that begins as an
earlier one went on has its names, whoever sends it and whatever it calls itself. What is
remembered may be wrong by now; then whoever asks there gets nothing, and computes.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from discovery.registry import Node
from engine.request import Request

STRIDE = 64  # tokens; fewer that are missing are not worth a fetch
MOST_KNOWN = 65_536
NAME_BYTES = 16
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class Place:
    """A node as it was then: another start of it has another id."""

    http_address: str
    node_id: str


@dataclass(slots=True)
class Conversations:
    """The latest names, `most` of them; those not met for longest are forgotten."""

    most: int = MOST_KNOWN
    _places: OrderedDict[bytes, Place] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._places)

    def remember(self, request: Request, said: tuple[int, ...], node: Node) -> None:
        """This node has the KV of a request's tokens, and of those that were `said` to it.

        Of the request itself the last name suffices: an answer that is written into the next
        prompt in another way may have to be left out, and what came before it not.
        """
        place = Place(node.registration.http_address, node.node_id)
        names = list(_names(request.cache_salt, request.tokens + said))
        for name in names[max(0, len(request.tokens) // STRIDE - 1) :]:
            self._places[name] = place
            self._places.move_to_end(name)
        while len(self._places) > self.most:
            self._places.popitem(last=False)

    def find(self, request: Request) -> Place | None:
        """Where the longest part of this request was seen that is remembered."""
        for name in reversed(list(_names(request.cache_salt, request.tokens))):
            if place := self._places.get(name):
                self._places.move_to_end(name)
                return place
        return None


def _names(salt: str, tokens: tuple[int, ...]) -> Iterator[bytes]:
    """Of the first STRIDE tokens, of twice as many, and so on."""
    data, step = memoryview(array("I", tokens).tobytes()), STRIDE * TOKEN_BYTES
    name = blake2b(salt.encode(), digest_size=NAME_BYTES).digest()
    for end in range(step, len(data) + 1, step):
        name = blake2b(data[end - step : end], key=name, digest_size=NAME_BYTES).digest()
        yield name
