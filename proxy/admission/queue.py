"""The queue of waiting requests: by priority, then fair shares of keys, then arrival.

A smaller `priority` is more urgent, as in the engine. Between keys of equal urgency it is
start-time fair queueing (Goyal, Vin, Cheng 1996): a key's virtual time grows by the tokens
it is given, divided by its weight, and the key with the least is next. A key that comes back
starts at the others' time, so idle keys save up nothing. Pure.
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
    """One request, waiting or running; `tokens` is an estimate that grows with its answer.

    `name` and `limits` are of its API key. Times are seconds of the caller's clock. Without a
    `deadline` it waits without limit.
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
    charged: int = 0  # tokens taken from its key's minute
    model: ModelKey | None = None  # None: limits do not depend on nodes
    pooled: bool = False  # a pooling request: it has no tokens to decode
    unfinished_prompts: set[int] = field(default_factory=set)  # choices without a first token
    decodes: bool = False  # it counts at decode nodes, too

    @property
    def lane(self) -> Lane:
        """Its sub-queue: of one key, one model, and either generation or pooling."""
        return self.name, self.model, self.pooled

    @property
    def rank(self) -> tuple[int, int]:
        """The order within a lane: smaller first."""
        return self.priority, self.number


def _tokens(entry: QueueEntry) -> int:
    return entry.tokens


@dataclass(slots=True)
class RequestQueue:
    """The waiting requests, in lanes. A call costs at most the number of lanes."""

    tokens: int = 0
    _length: int = 0
    _arrivals: int = 0
    _time: float = 0.0
    _waiting: dict[Lane, list[QueueEntry]] = field(default_factory=dict)
    _times: dict[str, float] = field(default_factory=dict)
    _most_times: int = FEW_TIMES  # beyond it, virtual times that are past are dropped

    def __len__(self) -> int:
        return self._length

    def of(self, name: str) -> list[QueueEntry]:
        """The waiting requests of this key."""
        lanes = self._waiting.items()
        return [one for (key, *_), lane in lanes if key == name for one in lane]

    def waiting_for(self, model: ModelKey | None) -> int:
        """The number of requests that wait for this model's nodes."""
        return sum(len(lane) for (_, one, _), lane in self._waiting.items() if one == model)

    def push(self, entry: QueueEntry) -> None:
        """Add a request behind all of its lane with the same priority."""
        entry.number, self._arrivals = self._arrivals, self._arrivals + 1
        insort(self._waiting.setdefault(entry.lane, []), entry, key=_rank)
        self._length += 1
        self.tokens += entry.tokens

    def remove(self, entry: QueueEntry) -> bool:
        """Remove a request; False if it is not in the queue."""
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
        """The next request: of the heads of all lanes, the first that `may` start. It is not
        removed.
        """
        firsts = sorted((own[0] for own in self._waiting.values()), key=self._turn)
        return next(filter(may, firsts), None)

    def begin(self, entry: QueueEntry) -> None:
        """Charge a request that starts, at its key's virtual time, which is everybody's now."""
        self._time = self._start(entry)
        self.charge(entry, entry.tokens)

    def charge(self, entry: QueueEntry, tokens: int) -> None:
        """Correct what its key was charged; negative tokens are a refund."""
        self._times[entry.name] = self._start(entry) + tokens / entry.limits.weight
        if len(self._times) > self._most_times:
            now = self._time
            self._times = {name: at for name, at in self._times.items() if at > now}
            self._most_times = 2 * len(self._times) + FEW_TIMES

    def ahead_of(
        self, entry: QueueEntry, weigh: Callable[[QueueEntry], int] = _tokens
    ) -> float:
        """Estimated tokens (or another `weigh`) of requests that start before this one."""
        of_keys = dict[str, list[QueueEntry]]()
        for (name, *_), lane in self._waiting.items():
            of_keys.setdefault(name, []).extend(lane)
        alike = of_keys.pop(entry.name, [])
        own = sum(weigh(one) for one in alike if one.rank < entry.rank)
        share, priority = (own + weigh(entry)) / entry.limits.weight, entry.priority
        return own + sum(_before(each, priority, share, weigh) for each in of_keys.values())

    def _turn(self, entry: QueueEntry) -> tuple[int, float, int]:
        return entry.priority, self._start(entry), entry.number

    def _start(self, entry: QueueEntry) -> float:
        """The virtual time at which its key's next request starts."""
        return max(self._time, self._times.get(entry.name, 0.0))


def _before(
    others: list[QueueEntry], priority: int, share: float, weigh: Callable[[QueueEntry], int]
) -> float:
    """All of smaller priority numbers, and of the same number up to the key's fair share."""
    urgent = sum(weigh(one) for one in others if one.priority < priority)
    alike = sum(weigh(one) for one in others if one.priority == priority)
    return urgent + min(alike, share * others[0].limits.weight)


def _rank(entry: QueueEntry) -> tuple[int, int]:
    return entry.rank
