"""Rate limits of API keys, in requests and tokens per minute. Pure: times are arguments.

A bucket fills steadily and holds a minute's worth: an idle key may send that at once, a busy
one at the rate (the leaky bucket as a meter: Turner 1986). Tokens are an estimate when a
request starts, corrected when it ends. Each proxy worker has its own buckets, and they
exchange reports of what was taken.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from proxy.admission.errors import RateLimited, RequestsPerMinute, TokensPerMinute
from proxy.admission.limits import ApiCaller, KeyLimits
from proxy.admission.queue import QueueEntry

MINUTE_S = 60.0
ROUNDING_S = 1e-6
MOST_KEPT = 4096
REQUESTS, TOKENS = "requests", "tokens"
Limited = tuple[str, int, int, type[RateLimited]]
BucketKey = tuple[str, str]  # a key's name, and "requests" or "tokens"


@dataclass(slots=True)
class Bucket:
    """`level` may be negative: a request larger than a minute's worth is paid off later."""

    most: int
    level: float
    at: float

    def level_at(self, now: float) -> float:
        """The level at a time."""
        return min(self.most, self.level + (now - self.at) * self.most / MINUTE_S)

    def take(self, amount: float, now: float) -> None:
        """Take an amount; a negative one is given back, and what it cannot hold is lost."""
        self.level, self.at = self.level_at(now) - amount, now

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until it holds this much, or is full."""
        return max(0.0, min(amount, self.most) - self.level_at(now)) * MINUTE_S / self.most

    def resize(self, most: int, now: float) -> None:
        """Change its size."""
        self.level, self.at = min(self.level_at(now), most), now
        self.most = most


class BucketReport(msgspec.Struct, frozen=True, array_like=True):
    """A worker's report to the others about a bucket that is not full.

    The worker took `total` since `since`; `level` is its estimate of what is left of `most`,
    including what others took.
    """

    name: str
    what: str
    most: int
    since: float
    total: float
    level: float


@dataclass(slots=True)
class RateBuckets:
    """The buckets of keys with rate limits; full ones may be dropped.

    Times are seconds of a clock that all workers share; `since`: when this worker started.
    """

    since: float = 0.0
    _buckets: dict[BucketKey, Bucket] = field(default_factory=dict)
    _taken: dict[BucketKey, tuple[float, float]] = field(default_factory=dict)
    _heard: dict[str, dict[BucketKey, BucketReport]] = field(default_factory=dict)

    def begin(self, entry: QueueEntry, *, now: float) -> None:
        """Take a request from its buckets; raises RateLimited, and then takes nothing."""
        wanted = list(_of(entry))
        for what, most, amount, refusal in wanted:
            wait_s = self._bucket(entry.name, what, most, now).wait_s(amount, now)
            if wait_s > ROUNDING_S:
                said = f"Too many {what}: key {entry.name!r} may have {most} in a minute"
                raise refusal(said, wait_s)
        for what, most, amount, _ in wanted:
            self._bucket(entry.name, what, most, now)
            self._take(entry, what, amount, now)
        entry.charged = entry.tokens

    def end(self, entry: QueueEntry, *, now: float) -> None:
        """Correct the estimate by the tokens that the request had, if it was charged any."""
        if entry.limits.tokens_per_minute is not None:
            more = entry.prompt_tokens + entry.produced - entry.charged
            self._take(entry, TOKENS, more, now)

    def undo(self, entry: QueueEntry, *, now: float) -> None:
        """Give back all: the request was never admitted."""
        for what, _, amount, _ in _of(entry):
            self._take(entry, what, -amount, now)

    def headers(self, who: ApiCaller, limits: KeyLimits, *, now: float) -> Mapping[str, str]:
        """OpenAI's `x-ratelimit-*` headers."""
        found = dict[str, str]()
        for what, most in _rates(limits):
            bucket = self._bucket(who.name, what, most, now)
            found[f"x-ratelimit-limit-{what}"] = str(most)
            found[f"x-ratelimit-remaining-{what}"] = str(max(0, int(bucket.level_at(now))))
            found[f"x-ratelimit-reset-{what}"] = duration(bucket.wait_s(most, now))
        return found

    def reports(self, *, now: float) -> list[BucketReport]:
        """Reports for the other workers; full buckets are dropped."""
        self._taken = {
            which: taken
            for which, taken in self._taken.items()
            if which in self._buckets
            and self._buckets[which].level_at(now) < self._buckets[which].most
        }
        return [
            BucketReport(
                *which, self._buckets[which].most, *taken, self._buckets[which].level_at(now)
            )
            for which, taken in self._taken.items()
        ]

    def apply_reports(self, sender: str, words: Iterable[BucketReport], *, now: float) -> None:
        """Apply the newest `reports` of another worker; earlier ones may have been missed."""
        before = self._heard.get(sender, {})
        self._heard[sender] = {(word.name, word.what): word for word in words}
        for which, word in self._heard[sender].items():
            last, known = before.get(which), which in self._buckets
            bucket = self._buckets.get(which) or self._bucket(*which, word.most, now)
            if last is not None and last.since == word.since:
                bucket.take(word.total - last.total, now)
            elif word.since >= self.since:
                bucket.take(word.total, now)
            elif not known:  # older than this worker, whose buckets lack what all others took
                bucket.take(word.most - word.level, now)

    def _take(self, entry: QueueEntry, what: str, amount: float, now: float) -> None:
        """Take or give back; nothing for a key without this limit."""
        which = entry.name, what
        if bucket := self._buckets.get(which):
            bucket.take(amount, now)
            since, total = self._taken.get(which, (now, 0.0))
            self._taken[which] = since, total + amount

    def _bucket(self, name: str, what: str, most: int, now: float) -> Bucket:
        found = self._buckets.get((name, what))
        if found is None:
            if len(self._buckets) >= MOST_KEPT:
                kept = self._buckets.items()
                self._buckets = {key: one for key, one in kept if one.level_at(now) < one.most}
            found = self._buckets[name, what] = Bucket(most, most, now)
        elif found.most != most:
            found.resize(most, now)
        return found


def duration(seconds: float) -> str:
    """A duration in OpenAI's format: 12ms, 8.64s, 6m0s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < MINUTE_S:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"


def _rates(limits: KeyLimits) -> Iterator[tuple[str, int]]:
    if limits.requests_per_minute is not None:
        yield REQUESTS, limits.requests_per_minute
    if limits.tokens_per_minute is not None:
        yield TOKENS, limits.tokens_per_minute


def _of(entry: QueueEntry) -> Iterator[Limited]:
    """What a request takes from each bucket, and the error if that is too much."""
    for what, most in _rates(entry.limits):
        if what == REQUESTS:
            yield what, most, 1, RequestsPerMinute
        else:
            yield what, most, entry.tokens, TokensPerMinute
