"""The queue by itself: whose request is the next, by what keys were charged."""

from proxy.admission.limits import KeyLimits
from proxy.admission.queue import QueueEntry, RequestQueue

FREE = KeyLimits()


def entry(name: str, tokens: int = 10, limits: KeyLimits = FREE) -> QueueEntry:
    return QueueEntry(name, limits, 0, tokens)


def order(line: RequestQueue) -> list[str]:
    """The names of all that wait, in the order in which they start."""
    began = list[str]()
    while (one := line.next(lambda _: True)) is not None:
        assert line.remove(one)
        line.begin(one)
        began.append(one.name)
    return began


def test_an_answer_that_grows_takes_nothing_from_keys_that_had_less() -> None:
    line, large = RequestQueue(), entry("loud", 1000)
    line.begin(large)
    for _ in range(3):
        line.push(entry("loud"))
        line.push(entry("quiet"))
    line.charge(large, 1)
    assert order(line) == ["quiet"] * 3 + ["loud"] * 3


def test_a_key_that_was_away_starts_at_the_others_time_and_not_before_it() -> None:
    line = RequestQueue()
    for name in ("a", "b", "a"):
        line.begin(entry(name))
    line.push(entry("b"))
    line.push(entry("away"))
    assert order(line) == ["b", "away"]
