"""With tiers below KV memory, whatever comes: the same tokens, no block and no slot lost."""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tiers.moves import DiskOperation
from engine.tiers.tiers import Tiers
from tests.fakes.tiers import ScriptedDisk, put_tiers_under
from tests.unit.test_scheduling_property import Arrival, engine_for, events, limits, play

slots = st.integers(1, 12)


@settings(max_examples=300, deadline=None)
@given(happens=events, limits=limits, spare=st.integers(0, 8), slots=slots)
def test_blocks_that_come_back_by_copy_change_no_token(
    happens: list[Arrival | str], limits: dict[str, int], spare: int, slots: int
) -> None:
    engine = engine_for(limits, spare)
    put_tiers_under(engine, slots=slots)
    play(engine, happens)


@settings(max_examples=300, deadline=None)
@given(
    happens=events,
    limits=limits,
    spare=st.integers(0, 8),
    slots=slots,
    places=st.integers(1, 30),
    chance=st.fixed_dictionaries(
        {
            "late": st.sampled_from([0.0, 0.5, 0.9]),
            "fails": st.sampled_from([0.0, 0.1]),
            "breaks": st.sampled_from([0.0, 0.0, 0.05]),
        }
    ),
    seed=st.integers(0, 1000),
)
def test_whatever_a_disk_does_the_tokens_are_the_same(
    happens: list[Arrival | str],
    limits: dict[str, int],
    spare: int,
    slots: int,
    places: int,
    chance: dict[str, float],
    seed: int,
) -> None:
    engine, ticks = engine_for(limits, spare), count()
    tiers = put_tiers_under(
        engine,
        slots=slots,
        places=places,
        disk=lambda host: ScriptedDisk(host, Random(seed), **chance),
        clock=lambda: float(next(ticks)),
    )
    tiers.fetch_s = 5.0
    play(engine, happens)
    settle(tiers)


def settle(tiers: Tiers) -> None:
    """Whatever was under way has ended, and nothing is kept for anybody."""
    for _ in range(200):
        tiers.collect_finished_jobs()
    tiers.book.check_idle()
    tiers.book.check()


def test_plays_with_more_to_come_back_move_blocks_both_ways_too() -> None:
    """Else the properties would say little: what Hypothesis thinks of is short."""
    tiers = [one.book.load for one in _played(late=0.3)]
    for tier in (0, 1):
        assert sum(load[tier].stored for load in tiers) > 100
        assert sum(load[tier].loaded for load in tiers) > 100


def test_reads_and_writes_that_fail_or_are_late_change_no_token() -> None:
    """A slot may have any bytes then, and so may a place on disk."""
    failed = Counter[DiskOperation]()
    for tiers in _played(late=0.5, fails=0.2):
        settle(tiers)
        assert isinstance(tiers.disk, ScriptedDisk)
        failed.update(job.operation for job in tiers.disk.failed)
    assert min(failed[operation] for operation in DiskOperation) > 10, failed


def test_a_disk_that_breaks_amid_reads_changes_no_token() -> None:
    for tiers in _played(late=0.5, breaks=0.02):
        settle(tiers)


def _played(**chance: float) -> Iterator[Tiers]:
    for seed in range(60):
        yield _play(Random(seed), **chance)


def _play(random: Random, **chance: float) -> Tiers:
    """Prompts with the same beginnings, some of which leave: much comes back from disk."""
    ticks = count()
    engine = engine_for({"chunk": 8, "seats": 4, "block_size": 2}, spare=random.randint(0, 4))
    tiers = put_tiers_under(
        engine,
        slots=8,
        places=30,
        disk=lambda host: ScriptedDisk(host, Random(0), **chance),
        clock=lambda: float(next(ticks)),
    )
    tiers.fetch_s = 8.0
    happens = list[Arrival | str]()
    for _ in range(20):
        happens.append(Arrival((0, 1) * random.randint(1, 9), 8, None, 0, "generate"))
        happens.append("abort" if random.random() < 0.05 else "turn")
    play(engine, happens)
    return tiers
