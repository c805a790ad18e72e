"""The line in which requests wait: urgency first, then fair shares of keys, then arrival.

A smaller `priority` is more urgent, as in the engine. Between keys of equal urgency it is
start-time fair queueing (Goyal, Vin, Cheng 1996): a key's virtual time grows by the tokens
it is given, divided by its weight, and whoever's is the least comes next. Who comes back after
a while begins where the others are, so nobody saves up. Pure.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

from engine.request import ModelKey
from proxy.admission.limits import KeyLimits

FEW_TIMES = 64
Lane = tuple[str, ModelKey | None, bool]


@dataclass(slots=True, eq=False)
class QueueEntry:
    """One request at the gate; `tokens` is an estimate that grows with what comes.

    `name` and `limits` are of the key it came with. Times are seconds of the caller's clock.
    Without a `deadline` it waits as long as it takes.
    """

    name: str
    limits: KeyLimits
    prompt_tokens: int
    tokens: int
    choices: int = 1
    priority: int = 0
    deadline: float | None = None
    arrived: float = 0.0
    began: float | None = None
    produced: int = 0
    answered: bool = False
    number: int = 0
    charged: int = 0  # tokens, of its key's minute
    model: ModelKey | None = None  # None: any node will do
    pooled: bool = False  # there is no answer but a vector
    unfinished_prompts: set[int] = field(
        default_factory=set
    )  # choices whose prompts are at prefill nodes
    decodes: bool = False  # all of it counts at decode nodes

    @property
    def lane(self) -> Lane:
        """Where it stands: those of a key wait for each model's nodes apart, and so do answers
        and vectors, which may be made at others.
        """
        return self.name, self.model, self.pooled

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller goes first, among those of one lane."""
        return self.priority, self.number


def _tokens(entry: QueueEntry) -> int:
    return entry.tokens


@dataclass(slots=True)
class RequestQueue:
    """Those that wait. A call costs no more than the number of lanes that they do in."""

    tokens: int = 0
    _length: int = 0
    _arrivals: int = 0
    _time: float = 0.0
    _waiting: dict[Lane, list[QueueEntry]] = field(default_factory=dict)
    _times: dict[str, float] = field(default_factory=dict)
    _most_times: int = FEW_TIMES  # before those that say nothing are looked for

    def __len__(self) -> int:
        return self._length

    def of(self, name: str) -> list[QueueEntry]:
        """Who waits with this key."""
        lanes = self._waiting.items()
        return [one for (key, *_), lane in lanes if key == name for one in lane]

    def waiting_for(self, model: ModelKey | None) -> int:
        """How many wait for this model's nodes."""
        return sum(len(lane) for (_, one, _), lane in self._waiting.items() if one == model)

    def push(self, entry: QueueEntry) -> None:
        """Behind all of its lane that are as urgent."""
        entry.number, self._arrivals = self._arrivals, self._arrivals + 1
        insort(self._waiting.setdefault(entry.lane, []), entry, key=_rank)
        self._length += 1
        self.tokens += entry.tokens

    def remove(self, entry: QueueEntry) -> bool:
        """Out of its place at once; False if it is in none."""
        own = self._waiting.get(entry.lane, [])
        place = bisect_left(own, entry.rank, key=_rank)
        if place == len(own) or own[place] is not entry:
            return False
        del own[place]
        if not own:
            del self._waiting[entry.lane]
        self._length -= 1
        self.tokens -= entry.tokens
        return True

    def next(self, may: Callable[[QueueEntry], bool]) -> QueueEntry | None:
        """Who is to go next: the first that `may`, asked of each lane's first in turn. It stays
        in line.
        """
        firsts = sorted((own[0] for own in self._waiting.values()), key=self._turn)
        return next(filter(may, firsts), None)

    def charge(self, entry: QueueEntry, tokens: int) -> None:
        """So many tokens were given to its key; less than nothing was given back."""
        start = max(self._time, self._times.get(entry.name, 0.0))
        if tokens > 0:
            self._time = start
        self._times[entry.name] = start + tokens / entry.limits.weight
        if len(self._times) > self._most_times:
            now = self._time
            self._times = {name: at for name, at in self._times.items() if at > now}
            self._most_times = 2 * len(self._times) + FEW_TIMES

    def ahead_of(
        self, entry: QueueEntry, weigh: Callable[[QueueEntry], int] = _tokens
    ) -> float:
        """Tokens that are likely to be given to others before its turn comes, or what else is
        to be weighed.
        """
        of_keys = dict[str, list[QueueEntry]]()
        for (name, *_), lane in self._waiting.items():
            of_keys.setdefault(name, []).extend(lane)
        alike = of_keys.pop(entry.name, [])
        own = sum(weigh(one) for one in alike if one.rank < entry.rank)
        share, priority = (own + weigh(entry)) / entry.limits.weight, entry.priority
        return own + sum(_before(each, priority, share, weigh) for each in of_keys.values())

    def _turn(self, entry: QueueEntry) -> tuple[int, float, int]:
        start = max(self._time, self._times.get(entry.name, 0.0))
        return entry.priority, start, entry.number


def _before(
    others: list[QueueEntry], priority: int, share: float, weigh: Callable[[QueueEntry], int]
) -> float:
    """All that is more urgent, and of what is as urgent no more than their fair share."""
    urgent = sum(weigh(one) for one in others if one.priority < priority)
    alike = sum(weigh(one) for one in others if one.priority == priority)
    return urgent + min(alike, share * others[0].limits.weight)


def _rank(entry: QueueEntry) -> tuple[int, int]:
    return entry.rank
