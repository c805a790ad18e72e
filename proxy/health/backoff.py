"""How long to wait before a retry: exponential, with jitter. Pure except for its random
numbers.

After M. Brooker, "Exponential Backoff And Jitter": requests that failed together must not come
back together.
"""

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """At first 0.5 to 1 times `first_s`, doubled each time, at most `longest_s`; seconds."""

    first_s: float = 0.05
    longest_s: float = 2.0
    dice: random.Random = field(default_factory=random.Random)

    def delay_s(self, tries: int) -> float:
        """The delay after this many failed tries."""
        if tries <= 0:
            return 0.0
        most = min(self.first_s * 2.0 ** min(tries - 1, 32), self.longest_s)
        return most * self.dice.uniform(0.5, 1.0)
