"""Who goes first, who gives way, and who never has to."""

import pytest

from engine.request import Request, RequestId, Sampling
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone


def ask(name: str, length: int, answer: int, priority: int = 0) -> Request:
    prompt = tuple(name.encode()[:1]) * length
    return Request(RequestId(name), prompt, Sampling(answer), priority=priority)


def order(engine: FakeEngine) -> list[str]:
    """By their last tokens."""
    ended = list[str]()
    while engine.sequences.waiting or engine.sequences.running:
        ended += [one.request_id for one in engine.turn().sampled if one.finish]
    return ended


def answers(engine: FakeEngine, turns: int = 100) -> dict[str, list[int]]:
    said: dict[str, list[int]] = {}
    for _ in range(turns):
        for one in engine.turn().sampled:
            said.setdefault(one.request_id, []).extend(one.tokens)
    return said


def test_the_lower_value_runs_first_and_of_equals_the_earlier() -> None:
    engine = FakeEngine(seats=1)
    for name, priority in (("a", 1), ("b", 0), ("c", -3), ("d", 0), ("e", 1)):
        engine.generate(ask(name, 3, 2, priority))
    assert order(engine) == ["c", "b", "d", "a", "e"]


def test_the_urgent_gets_the_seat_of_the_newest_of_the_least_urgent() -> None:
    engine, asked = (
        FakeEngine(seats=3),
        [ask("b", 3, 9, 2), ask("c", 3, 9, 2), ask("a", 3, 9, 1)],
    )
    for request in asked:
        engine.generate(request)
        engine.turn()
    engine.generate(urgent := ask("urgent", 3, 2))
    engine.schedule()
    assert set(engine.sequences.running) == {"a", "b", "urgent"}
    assert answers(engine)["urgent"] == alone(urgent)
    assert engine.sequences.preemptions == 1


def test_whoever_gave_way_loses_no_token() -> None:
    engine, patient = FakeEngine(seats=1), ask("patient", 5, 9, 1)
    engine.generate(patient)
    said = answers(engine, turns=3)["patient"]
    engine.generate(ask("urgent", 3, 2))
    later = answers(engine)
    assert list(later) == ["urgent", "patient"]
    assert said + later["patient"] == alone(patient)


def test_equals_never_push_each_other_out() -> None:
    engine = FakeEngine(seats=1)
    engine.generate(ask("first", 3, 9))
    engine.turn()
    engine.generate(ask("second", 3, 1))
    assert engine.reserve(ask("third", 3, 1)) is None
    assert order(engine) == ["first", "second"]
    assert engine.sequences.preemptions == 0


def test_what_the_last_one_that_ran_leaves_is_given_to_who_is_ahead_at_once() -> None:
    """With an empty batch an engine waits for a message, which need not come."""
    engine = FakeEngine(blocks=16, block_size=1, watermark=0)
    engine.prefill(ask("parked", 8, 1))
    engine.turn()
    engine.prefill(ask("waits", 7, 1))
    assert engine.reserve(ask("arrives", 3, 9))
    engine.resume(RequestId("arrives"), [4])
    engine.schedule()
    while not engine.sequences.preemptions:
        engine.step()
        engine.schedule()
    assert [one.seq.request_id for one in engine.scheduler.batch] == ["waits"]


def test_nobody_is_put_back_for_too_little() -> None:
    """The rest of the room is parked: the urgent would not fit all the same."""
    engine = FakeEngine(blocks=16, block_size=1, chunk=32, watermark=0)
    engine.prefill(ask("parked", 8, 1))
    engine.turn()
    engine.generate(ask("patient", 3, 3, 1))
    engine.turn()
    engine.generate(ask("urgent", 10, 1))
    assert engine.reserve(ask("arrives", 10, 1)) is None
    engine.turn()
    assert "patient" in engine.sequences.running
    assert engine.sequences.preemptions == 0
    engine.release(RequestId("parked"))
    assert set(order(engine)) == {"patient", "urgent"}


def test_what_parks_gives_way_to_nobody() -> None:
    engine = FakeEngine(seats=1, chunk=2)
    engine.prefill(ask("parks", 6, 1, priority=5))
    engine.turn()
    engine.generate(ask("urgent", 3, 1))
    engine.turn()
    assert list(engine.sequences.running) == ["parks"]
    assert engine.sequences.preemptions == 0


def test_who_was_put_back_does_not_come_in_again_in_the_same_batch() -> None:
    """The small one goes first, then the large one, and the small one would fit again."""
    engine = FakeEngine(blocks=16, block_size=1, chunk=32, watermark=0)
    asked = [ask("large", 9, 3, 1), ask("small", 2, 3, 1), ask("urgent", 8, 2)]
    for request in asked[:2]:
        engine.generate(request)
    said = answers(engine, turns=1)
    engine.generate(asked[2])
    engine.schedule()
    assert [chunk.seq.request_id for chunk in engine.scheduler.batch] == ["urgent"]
    for name, tokens in answers(engine).items():
        said.setdefault(name, []).extend(tokens)
    assert said == {one.request_id: alone(one) for one in asked}


def test_an_urgent_reservation_makes_itself_room() -> None:
    engine = FakeEngine(seats=1)
    engine.generate(ask("patient", 3, 9, 1))
    engine.turn()
    assert engine.reserve(ask("equal", 3, 1, 1)) is None
    assert engine.reserve(ask("urgent", 3, 1))
    assert [one.request_id for one in engine.sequences.waiting] == ["patient"]


def test_a_large_reservation_is_not_overtaken_for_ever() -> None:
    """Small ones come all the time, and each would fit into what another has left."""
    engine = FakeEngine(blocks=16, block_size=1, chunk=32)
    large, came = ask("large", 12, 2), 0
    for turn in range(30):
        engine.generate(ask(f"small {turn}", 3, 4))
        came = turn
        if turn > 2 and engine.reserve(large):
            break
        engine.turn()
    assert came < 10
    engine.release(large.request_id)
    assert len(order(engine)) > 0  # and then the others go on
    assert engine.load.free_blocks == engine.load.total_blocks


def test_a_reservation_nobody_asks_for_again_holds_up_nobody() -> None:
    engine = FakeEngine(blocks=16, block_size=1, chunk=32)
    engine.generate(ask("runs", 8, 8))
    engine.turn()
    assert engine.reserve(ask("large", 12, 2)) is None
    engine.generate(ask("small", 1, 1))
    engine.turn()
    assert len(engine.sequences.waiting) == 1
    engine.turn()
    assert not engine.sequences.waiting


def test_a_seat_that_is_free_since_a_prompt_parked_is_taken() -> None:
    engine = FakeEngine(seats=1, chunk=32)
    for name in "ab":
        engine.prefill(ask(name, 3, 1))
    engine.turn()
    engine.turn()
    assert set(engine.sequences.parked) == {"a", "b"}
    engine.sequences.check_idle()  # their blocks are not lost


def test_the_urgent_waits_for_what_is_being_fetched_and_not_for_its_answer() -> None:
    """What is fetched cannot give way; as soon as it runs it can."""
    engine, fetched, urgent = FakeEngine(seats=1), ask("fetched", 3, 50, 1), ask("urgent", 3, 2)
    assert engine.reserve(fetched)
    engine.generate(urgent)
    assert engine.schedule() == []
    engine.fetch(fetched.request_id)
    engine.resume(fetched.request_id, alone(fetched)[:1])
    assert [one.request_id for one in engine.schedule()] == ["urgent"]


def test_nor_does_an_urgent_reservation() -> None:
    engine, fetched, urgent = FakeEngine(seats=1), ask("fetched", 3, 50, 1), ask("urgent", 3, 2)
    assert engine.reserve(fetched)
    assert engine.reserve(urgent) is None
    engine.fetch(fetched.request_id)
    engine.resume(fetched.request_id, alone(fetched)[:1])
    assert engine.reserve(urgent)


@pytest.mark.parametrize(("priority", "stays"), [(0, "older"), (1, "newer")])
def test_where_answers_outgrow_the_room_the_last_in_rank_gives_way(
    priority: int, stays: str
) -> None:
    engine = FakeEngine(blocks=8, block_size=1, chunk=32, watermark=0)
    engine.generate(ask("older", 2, 6, priority))
    engine.generate(ask("newer", 2, 6))
    while not engine.load.preemptions:
        engine.turn()
    assert list(engine.sequences.running) == [stays]


def test_choices_that_share_their_prompt_give_way_together() -> None:
    """Its blocks are free once all of them have gone, though none of them has it alone."""
    engine = FakeEngine(blocks=32, block_size=1, chunk=64, watermark=0)
    for number in range(2):
        name, sampling = RequestId(f"choice {number}"), Sampling(10, seed=number)
        engine.generate(Request(name, tuple(range(10)), sampling, priority=1))
    engine.turn()
    engine.turn()
    assert len(engine.sequences.running) == 2
    engine.generate(ask("urgent", 24, 1))
    assert [one.request_id for one in engine.turn().sampled] == ["urgent"]
    assert engine.sequences.preemptions == 2


def test_of_more_than_a_batch_has_tokens_for_the_first_in_rank_go_on() -> None:
    engine = FakeEngine(chunk=1, seats=2)
    for request in (ask("patient", 3, 3, 1), ask("urgent", 3, 3)):
        assert engine.reserve(request)
        engine.fetch(request.request_id)
        engine.resume(request.request_id, alone(request)[:1])
    assert order(engine) == ["urgent", "patient"]


def test_what_is_behind_the_first_of_some_refused_reservations_waits() -> None:
    engine = FakeEngine(seats=8, blocks=8, block_size=1, chunk=32, watermark=0)
    engine.prefill(ask("parked", 4, 1))
    engine.turn()
    for name, priority in (("first", 0), ("last", 2)):
        assert engine.reserve(ask(name, 6, 1, priority)) is None
    engine.generate(ask("between", 2, 1, 1))
    assert engine.schedule() == []
    assert [one.request_id for one in engine.schedule()] == ["between"]  # nobody asked again


def test_who_waits_for_a_prompt_on_offer_is_passed_though_an_answer_runs_too() -> None:
    engine = FakeEngine(blocks=10, block_size=1, watermark=0, chunk=4)
    engine.generate(ask("answers", 1, 3))
    for name in ("on offer", "behind"):
        engine.prefill(ask(name, 6, 1))
    engine.turn()
    assert (engine.load.running, engine.load.waiting) == (2, 1)
    assert engine.reserve(ask("reserved", 1, 1))


def test_an_answer_that_waits_for_another_is_not_passed_though_a_prompt_is_parked() -> None:
    engine = FakeEngine(blocks=10, block_size=1, watermark=0)
    engine.prefill(ask("parked", 2, 1))
    engine.generate(ask("runs", 4, 3))
    engine.turn()
    engine.generate(ask("waits", 6, 1))
    engine.turn()
    assert (len(engine.sequences.parked), engine.load.waiting) == (1, 1)
    assert engine.reserve(ask("x", 1, 1)) is None


def test_nothing_is_kept_free_for_the_growth_of_what_gives_way() -> None:
    engine = FakeEngine(blocks=16, block_size=1, chunk=32, watermark=1)
    engine.generate(ask("patient", 4, 9, 1))
    engine.turn()
    engine.generate(ask("urgent", 14, 2))
    assert [one.request_id for one in engine.schedule()] == ["urgent"]
