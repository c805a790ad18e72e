"""The measurements run, and measure what they say."""

from bench.books import BLOCKS, books_us, load
from engine.scheduling.growth import Growth


def test_what_is_kept_free_saves_preemptions() -> None:
    nothing, everything, learned = (
        load(growth) for growth in (Growth(0, learns=False), Growth(1, learns=False), Growth())
    )
    assert nothing.preemptions > 10 * learned.preemptions
    assert everything.preemptions == everything.again == 0
    assert learned.steps < 1.1 * nothing.steps
    assert 1 / BLOCKS < everything.used < learned.used < nothing.used


def test_books_cost_something() -> None:
    assert books_us(2) > 0
