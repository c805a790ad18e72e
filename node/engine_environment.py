"""The environment variables that an engine process starts with."""

from collections.abc import Mapping

SETTINGS = "PDSERVE_"  # prefix of ours
SPIN_COUNT, WAIT_POLICY = "GOMP_SPINCOUNT", "OMP_WAIT_POLICY"
TURNS = "3000"  # of a loop, some 60 to 150 us; 300,000 is the default


def engine_environment(given: Mapping[str, str]) -> dict[str, str]:
    """`given` without PDSERVE_*, and with how long threads wait for each other in a loop.

    Settings come by standard input, and may hold keys that compilers and ranks should not see.
    A kernel's thread that is done waits for the others in a loop, by libgomp's default for up
    to 15 ms, and keeps the core that one of them may wait for
    (docs/decisions/0104-threads-wait-briefly.md). Who has set that is not contradicted.
    """
    kept = {name: value for name, value in given.items() if not name.startswith(SETTINGS)}
    if WAIT_POLICY not in kept:
        kept.setdefault(SPIN_COUNT, TURNS)
    return kept
