"""How much each key may begin in a minute, of requests and tokens. Pure: times are arguments.

A bucket fills steadily and holds a minute's worth, so that who was silent may come all at once
and who goes on comes at the rate (the leaky bucket as a meter: Turner 1986). Tokens are an
estimate when a request begins, and set right when it ends.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from proxy.admission.errors import RateLimited, RequestsPerMinute, TokensPerMinute
from proxy.admission.limits import Caller, KeyLimits
from proxy.admission.line import Entry

MINUTE_S = 60.0
ROUNDING_S = 1e-6
MOST_KEPT = 4096
REQUESTS, TOKENS = "requests", "tokens"
Limited = tuple[str, int, int, type[RateLimited]]


@dataclass(slots=True)
class Bucket:
    """`level` may be less than nothing: what is larger than a minute is paid for later."""

    most: int
    level: float
    at: float

    def now(self, now: float) -> float:
        """What is in it."""
        return min(self.most, self.level + (now - self.at) * self.most / MINUTE_S)

    def take(self, amount: float, now: float) -> None:
        """Or give back, which is less than nothing."""
        self.level, self.at = min(self.most, self.now(now) - amount), now

    def wait_s(self, amount: float, now: float) -> float:
        """Until there is so much in it, or until it is full."""
        return max(0.0, min(amount, self.most) - self.now(now)) * MINUTE_S / self.most

    def hold(self, most: int, now: float) -> None:
        """Its size has changed."""
        self.level, self.at = min(self.now(now), most), now
        self.most = most


@dataclass(slots=True)
class Rates:
    """The buckets of keys that have such limits; one that is full again may be forgotten."""

    _buckets: dict[tuple[str, str], Bucket] = field(default_factory=dict)

    def begin(self, entry: Entry, *, now: float) -> None:
        """One request more; raises RateLimited, and then nothing was taken."""
        wanted = list(_of(entry))
        for what, most, amount, refusal in wanted:
            wait_s = self._bucket(entry.name, what, most, now).wait_s(amount, now)
            if wait_s > ROUNDING_S:
                said = f"Too many {what}: key {entry.name!r} may have {most} in a minute"
                raise refusal(said, wait_s)
        for what, most, amount, _ in wanted:
            self._bucket(entry.name, what, most, now).take(amount, now)
        entry.charged = entry.tokens

    def end(self, entry: Entry, *, now: float) -> None:
        """It is over; what it took in the end is what counts."""
        self._give_back(
            entry, TOKENS, entry.charged - entry.prompt_tokens - entry.produced, now
        )

    def undo(self, entry: Entry, *, now: float) -> None:
        """It was never let in."""
        self._give_back(entry, REQUESTS, 1, now)
        self._give_back(entry, TOKENS, entry.charged, now)

    def told(self, who: Caller, limits: KeyLimits, *, now: float) -> Mapping[str, str]:
        """The headers by which OpenAI says how much is left, in their units."""
        found = dict[str, str]()
        for what, most in _rates(limits):
            bucket = self._bucket(who.name, what, most, now)
            found[f"x-ratelimit-limit-{what}"] = str(most)
            found[f"x-ratelimit-remaining-{what}"] = str(max(0, int(bucket.now(now))))
            found[f"x-ratelimit-reset-{what}"] = duration(bucket.wait_s(most, now))
        return found

    def _give_back(self, entry: Entry, what: str, amount: int, now: float) -> None:
        if bucket := self._buckets.get((entry.name, what)):
            bucket.take(-amount, now)

    def _bucket(self, name: str, what: str, most: int, now: float) -> Bucket:
        found = self._buckets.get((name, what))
        if found is None:
            if len(self._buckets) >= MOST_KEPT:
                kept = self._buckets.items()
                self._buckets = {key: one for key, one in kept if one.now(now) < one.most}
            found = self._buckets[name, what] = Bucket(most, most, now)
        elif found.most != most:
            found.hold(most, now)
        return found


def duration(seconds: float) -> str:
    """As OpenAI writes one: 12ms, 8.64s, 6m0s."""
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


def _of(entry: Entry) -> Iterator[Limited]:
    """What it would take of which bucket, and what is said where that is too much."""
    for what, most in _rates(entry.limits):
        if what == REQUESTS:
            yield what, most, 1, RequestsPerMinute
        else:
            yield what, most, entry.tokens, TokensPerMinute
