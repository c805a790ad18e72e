"""A simulated node: timings, a prefill queue, a decode batch and a prefix cache.

A step's time has a fixed part, a part for each prompt token and for each pair of tokens in
attention, and a part for each decoding request and for each token of their contexts. Prompts
are run in chunks, first come first served, in the same steps as decoding.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from proxy.routing.prefix_hashes import STRIDE, PrefixHashes


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds, except the last field: about those of an 8B model on one large GPU."""

    step_s: float = 0.008
    token_s: float = 40e-6
    pair_s: float = 1e-9
    request_s: float = 50e-6
    held_token_s: float = 1e-7
    most_batched: int = 2048


@dataclass(slots=True, eq=False)
class SimulatedJob:
    """One request at one node: `missing` tokens to compute, then `steps` to decode."""

    number: int
    names: PrefixHashes
    tokens: int
    steps: int
    missing: int = 0
    cached: int | None = None
    begun: float = 0.0
    last_chunk: int = 0


@dataclass(frozen=True, slots=True)
class StepEvent:
    """An event of a job in a step: it was `admitted`, its prompt `ran`, or it is `over`."""

    kind: str
    job: SimulatedJob


@dataclass(slots=True)
class SimulatedNode:
    """Runs steps, each by one `begin` and one `end`."""

    name: str
    speeds: Speeds
    cache_tokens: int
    working: bool = False
    _line: deque[SimulatedJob] = field(default_factory=deque)
    _batch: list[SimulatedJob] = field(default_factory=list)
    _ends: list[tuple[int, int, SimulatedJob]] = field(
        default_factory=list
    )  # by their last step
    _steps: int = 0
    _held: int = 0
    _cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)

    @property
    def waiting(self) -> int:
        """The number of prompts that have not been run yet."""
        return len(self._line)

    @property
    def running(self) -> int:
        """The number of decoding requests."""
        return len(self._ends)

    def cached(self, names: PrefixHashes) -> int:
        """How many tokens of a prompt are cached here; marks them as used."""
        count = 0
        for name in names:
            if name not in self._cache:
                break
            count += 1
        for name in reversed(names[:count]):
            self._cache.move_to_end(name)
        return count * STRIDE

    def keep(self, names: PrefixHashes) -> None:
        """Cache these prefixes, evicting the least recently used ones if needed."""
        for name in reversed(names):
            self._cache[name] = None
            self._cache.move_to_end(name)
        while len(self._cache) * STRIDE > self.cache_tokens:
            self._cache.popitem(last=False)

    def take(self, job: SimulatedJob) -> None:
        """Queue a prompt to run, and its decoding, if any."""
        self._line.append(job)

    def join(self, job: SimulatedJob) -> None:
        """Add a request whose KV is here to the decode batch."""
        self._held += job.tokens
        heappush(self._ends, (self._steps + job.steps, job.number, job))

    def begin(self, now: float) -> tuple[float, list[StepEvent]] | None:
        """Begin a step: its duration, and the jobs admitted to it; None if nothing is to do."""
        if not (self._line or self._ends):
            return None
        room, admitted, tokens, pairs = self.speeds.most_batched - self.running, [], 0, 0
        self._batch = []
        for job in self._line:
            if room <= 0:
                break
            if job.cached is None:
                job.cached, job.begun = min(self.cached(job.names), job.tokens - 1), now
                job.missing = job.tokens - job.cached
                admitted.append(StepEvent("admitted", job))
            chunk = min(room, job.missing)
            done = job.tokens - job.missing
            pairs += chunk * (2 * done + chunk) // 2
            job.missing, job.last_chunk = job.missing - chunk, chunk
            room, tokens = room - chunk, tokens + chunk
            self._batch.append(job)
        speeds = self.speeds
        seconds = speeds.step_s + tokens * speeds.token_s + pairs * speeds.pair_s
        seconds += self.running * speeds.request_s + self._held * speeds.held_token_s
        return seconds, admitted

    def end(self) -> Iterator[StepEvent]:
        """End the step; yields its events."""
        self._steps += 1
        self._held += self.running
        while self._ends and self._ends[0][0] <= self._steps:
            _, _, job = heappop(self._ends)
            self._held -= job.tokens + job.steps
            yield StepEvent("over", job)
        for job in self._batch:
            if not job.missing:
                self._line.remove(job)
                self.keep(job.names)
                yield StepEvent("ran", job)
