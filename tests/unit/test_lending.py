"""Blocks on loan between prefix caches: how many may go, and what an open loan means."""

import pytest

from engine.request import Request, RequestId, Sampling
from tests.fakes.engine import FakeEngine

PROMPT = tuple(range(9))  # two full blocks of 4, and a token


def with_prompt(watermark: float = 0) -> tuple[FakeEngine, list[bytes]]:
    """An idle engine that has the prompt in its cache, and the keys of its blocks."""
    engine, request = FakeEngine(blocks=8, watermark=watermark), Request(RequestId("r"), PROMPT)
    keys = list(engine.keys(request))
    engine.generate(Request(RequestId("before"), PROMPT, Sampling(1)))
    engine.turn()
    return engine, keys


def begin_to_grow(engine: FakeEngine) -> None:
    """A request runs for whose answer blocks are kept free, if any are."""
    engine.generate(Request(RequestId("grows"), (30,) * 4, Sampling(25)))
    engine.turn()


def test_an_idle_engine_knows_an_open_loan_from_a_leak() -> None:
    engine, keys = with_prompt()
    for name in ("one", "other"):
        assert engine.lend(name, keys)
    for name in ("one", "other"):
        engine.sequences.check_idle()
        engine.give_back(name)
    engine.sequences.check_idle()
    engine.kv.pool.take(1)
    with pytest.raises(AssertionError):
        engine.sequences.check_idle()


def test_all_that_can_be_spared_may_be_borrowed_and_no_more() -> None:
    engine, keys = with_prompt()
    more = [bytes([n]) * 16 for n in range(7)]
    assert engine.borrow("too much", [*keys, *more], have=2) is None
    assert engine.load.free_blocks == 8
    borrowed = engine.borrow("all", [*keys, *more[:6]], have=2)
    assert borrowed is not None
    assert len(borrowed) == 6
    assert engine.load.free_blocks == 0


def test_who_found_no_room_beside_a_loan_comes_in_once_it_has_ended() -> None:
    engine, keys = with_prompt()
    assert engine.lend("loan", keys)
    engine.generate(Request(RequestId("leaves"), (40,) * 3, Sampling(9)))
    engine.turn()
    engine.generate(Request(RequestId("large"), (30,) * 28, Sampling(1)))
    assert not engine.schedule()
    engine.release(RequestId("leaves"))
    assert not engine.schedule()
    engine.give_back("loan")
    assert [one.request_id for one in engine.schedule()] == ["large"]


def test_blocks_that_somebody_uses_already_are_lent_though_none_can_be_spared() -> None:
    engine, keys = with_prompt()
    engine.prefill(Request(RequestId("parked"), (30,) * 24))
    engine.turn()
    engine.turn()
    assert engine.load.free_blocks == len(keys) == 2
    first = engine.lend("one", keys)
    assert engine.load.free_blocks == 0
    assert list(engine.lend("other", keys)) == list(first)
    assert len(first) == 2


def test_nothing_is_borrowed_behind_what_has_left_the_cache() -> None:
    engine, keys = with_prompt()
    more = [bytes([n]) * 16 for n in range(2)]
    assert engine.borrow("late", [*keys, *more], have=3) is None
    assert engine.load.free_blocks == 8


def test_what_has_come_before_it_is_borrowed_is_not_held_and_stays_as_it_is() -> None:
    engine, keys = with_prompt()
    assert engine.borrow("loan", keys, have=1)
    assert engine.load.free_blocks == 8 - 2
    engine.keep("loan")
    assert engine.load.free_blocks == 8
    engine.kv.check()


@pytest.mark.parametrize("way", ["keep", "give_back"])
def test_what_was_borrowed_is_free_again_and_in_the_cache_only_if_it_came(way: str) -> None:
    engine, keys = with_prompt()
    wanted = [*keys, *(bytes([n]) * 16 for n in range(3))]
    borrowed = engine.borrow("loan", wanted, have=2)
    assert borrowed is not None
    assert (len(borrowed), engine.load.free_blocks) == (3, 3)
    getattr(engine, way)("loan")
    assert engine.load.free_blocks == 8
    assert engine.known(wanted) == (5 if way == "keep" else 2)
    assert list(engine.kv.pool.pin(wanted[2:], spare=8)) == (
        list(borrowed) if way == "keep" else []
    )
    engine.kv.check()


def test_blocks_that_are_kept_free_for_answers_are_not_lent() -> None:
    engine, keys = with_prompt(watermark=1.0)
    begin_to_grow(engine)
    kept = engine.sequences.kept_free
    assert kept == engine.load.free_blocks - 1
    assert len(engine.lend("loan", keys)) == 1
    assert engine.borrow("more", [bytes(16)], have=0) is None


def test_a_name_in_use_opens_no_loan_and_takes_no_block() -> None:
    engine, keys = with_prompt()
    assert not engine.lend("loan", [bytes(16)]), "of which there is nothing to lend"
    assert engine.lend("loan", keys[:1])
    free = engine.load.free_blocks
    with pytest.raises(ValueError, match="loan loan is open already"):
        engine.lend("loan", keys)
    with pytest.raises(ValueError, match="loan loan is open already"):
        engine.borrow("loan", [*keys, bytes(16)], have=2)
    assert engine.load.free_blocks == free
    engine.give_back("loan")
    engine.sequences.check_idle()


def test_blocks_in_use_are_lent_although_more_is_kept_free_than_there_is() -> None:
    engine, keys = with_prompt(watermark=1.0)
    first = engine.lend("one", keys)
    begin_to_grow(engine)
    assert engine.sequences.kept_free > engine.load.free_blocks
    assert list(engine.lend("other", keys)) == list(first)
    assert len(first) == 2


def test_of_what_was_borrowed_and_kept_the_end_is_evicted_first() -> None:
    engine, keys = with_prompt()
    wanted = [*keys, *(bytes([n]) * 16 for n in range(3))]
    assert engine.borrow("loan", wanted, have=2)
    engine.keep("loan")
    engine.kv.pool.take(4)  # three that are blank, and one that is evicted
    assert engine.known(wanted) == 4
