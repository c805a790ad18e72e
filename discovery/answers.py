"""A proxy's word to a node that it took in, without which the node cannot know that it was.

Who is dropped hears nothing: whoever does not know the cluster's key learns nothing by trying.
"""

from dataclasses import dataclass, field

from discovery.errors import MalformedRegistration
from discovery.registration import pack, unpack

ANSWERED = 4
"""One of so many registrations is answered, the first of a connection among them."""
MOST_CONNECTIONS = 8192
TAKEN = "taken"
ANSWER = pack({TAKEN: True})


@dataclass(slots=True)
class Answers:
    """How often each connection has spoken; of more than are kept the oldest begin anew."""

    _words: dict[bytes, int] = field(default_factory=dict)

    def due(self, connection: bytes) -> bool:
        """Whether this registration, which was taken, is one that is answered."""
        before = self._words.get(connection, 0)
        self._words[connection] = before + 1
        if len(self._words) > MOST_CONNECTIONS:
            del self._words[next(iter(self._words))]
        return before % ANSWERED == 0


def is_answer(frame: bytes) -> bool:
    """Of whatever a proxy sent: others than ours may send anything."""
    try:
        return unpack(frame).get(TAKEN) is True
    except MalformedRegistration:
        return False
