"""The measurements run, and measure what they say."""

from bench.books import BLOCKS, books_us, load
from bench.waiting import no_room_us, offers_us, pulls_us, schedule_us
from engine.scheduling.watermark import Watermark


def test_what_is_kept_free_saves_preemptions() -> None:
    nothing, everything, learned = (
        load(growth)
        for growth in (Watermark(0, learns=False), Watermark(1, learns=False), Watermark())
    )
    assert nothing.preemptions > 10 * learned.preemptions
    assert everything.preemptions == everything.again == 0
    assert learned.steps < 1.1 * nothing.steps
    assert 1 / BLOCKS < everything.used < learned.used < nothing.used


def test_books_cost_something() -> None:
    assert books_us(2) > 0


def test_what_waits_costs_something() -> None:
    assert min(offers_us(2), pulls_us(2), no_room_us(2), schedule_us(2)) > 0
