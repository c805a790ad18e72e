"""How long to wait before another try: exponential, with jitter. Pure but for its dice.

After M. Brooker, "Exponential Backoff And Jitter": what failed together shall not come back
together.
"""

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Backoff:
    """From half of `first_s` on, twice as long each time, `longest_s` at most; in seconds."""

    first_s: float = 0.05
    longest_s: float = 2.0
    dice: random.Random = field(default_factory=random.Random)

    def delay_s(self, tries: int) -> float:
        """After so many tries that came to nothing."""
        if tries <= 0:
            return 0.0
        most = min(self.first_s * 2.0 ** min(tries - 1, 32), self.longest_s)
        return most * self.dice.uniform(0.5, 1.0)
