"""The cache of nodes without some of them: the right ones, and not for ever."""

from proxy.health.filter_cache import MOST_KEPT, FilterCache


def test_each_tuple_has_its_own_result_however_many_come_and_go() -> None:
    cache = FilterCache[int]()
    for first in range(5 * MOST_KEPT):
        given = (first, first + 1, first + 2)  # the one before is only alive in the cache
        assert cache.without(given, frozenset({first + 1})) == (first, first + 2)
        assert len(cache._kept) <= MOST_KEPT


def test_the_same_question_has_the_same_answer_and_another_set_another() -> None:
    cache, given = FilterCache[int](), (1, 2, 3)
    once = cache.without(given, frozenset({2}))
    assert cache.without(given, frozenset({2})) is once
    assert cache.without(given, frozenset({3})) == (1, 2)
    assert cache.without(given, frozenset()) is given
    assert cache.without([1, 2], frozenset({2})) == [1]
