"""Whoever has the same prompt as one on its way waits for it, and for nothing else."""

from engine.request import Request, RequestId, Sampling
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone

PROMPT = tuple(range(24))


def ask(name: str, prompt: tuple[int, ...] = PROMPT, priority: int = 0) -> Request:
    return Request(RequestId(name), prompt, Sampling(2, seed=len(name)), priority=priority)


def run(engine: FakeEngine, turns: int = 20) -> dict[str, list[int]]:
    said: dict[str, list[int]] = {}
    for _ in range(turns):
        for one in engine.turn().sampled:
            said.setdefault(one.request_id, []).extend(one.tokens)
    return said


def computed(engine: FakeEngine) -> int:
    return engine.turn().num_tokens


def test_the_same_prompt_is_computed_once() -> None:
    engine = FakeEngine(chunk=64)
    asked = [ask("first"), ask("second"), ask("the third")]
    for one in asked:
        engine.prefill(one)
    assert computed(engine) == 24
    assert computed(engine) == 2 * 4  # each its last block: the last token is never shared
    assert engine.load.waiting == 0


def test_a_prompt_of_several_chunks_is_waited_for_until_all_of_it_is_there() -> None:
    engine = FakeEngine(chunk=16)
    for name in ("first", "second"):
        engine.prefill(ask(name))
    run(engine)
    assert engine.computed == 24 + 4


def test_others_do_not_wait_for_it() -> None:
    engine = FakeEngine(chunk=64)
    for one in (ask("first"), ask("second"), ask("other", tuple(range(50, 60)))):
        engine.generate(one)
    assert [one.request_id for one in engine.schedule()] == ["first", "other"]


def test_what_is_known_already_is_waited_for_by_nobody() -> None:
    engine = FakeEngine(chunk=64)
    engine.generate(ask("before"))
    run(engine)
    for one in (ask("first"), ask("second")):
        engine.generate(one)
    assert [one.cached_tokens for one in engine.schedule()] == [20, 20]


def test_another_salt_is_another_prompt() -> None:
    engine = FakeEngine(chunk=64)
    engine.generate(ask("first"))
    engine.generate(Request(RequestId("salted"), PROMPT, Sampling(1), cache_salt="s"))
    assert len(engine.schedule()) == 2


def test_the_more_urgent_does_not_wait() -> None:
    engine = FakeEngine(chunk=8)
    engine.generate(ask("first"))
    engine.generate(ask("second"))
    engine.turn()
    engine.generate(ask("urgent", priority=-1))
    assert [one.request_id for one in engine.schedule()] == ["urgent"]
    engine.release(RequestId("urgent"))
    assert computed(engine) == 8, "the second still waits for the first"
    assert set(run(engine)) == {"first", "second"}


def test_if_the_first_leaves_the_next_goes_on() -> None:
    engine = FakeEngine(chunk=8)
    for name in ("first", "second", "third"):
        engine.generate(ask(name))
    engine.turn()
    engine.release(RequestId("first"))
    said = run(engine)
    assert said == {name: alone(ask(name)) for name in ("second", "third")}
    engine.sequences.check_idle()


def test_one_that_waits_for_another_can_leave() -> None:
    engine = FakeEngine(chunk=8)
    for name in ("first", "second", "third"):
        engine.generate(ask(name))
    engine.turn()
    engine.release(RequestId("second"))
    assert set(run(engine)) == {"first", "third"}
    assert len(engine.sequences.waiting) == 0


def test_those_who_wait_for_a_prompt_go_on_waiting_when_others_leave() -> None:
    """The queue is put in order when many have left it, and knows then who is set aside."""
    engine = FakeEngine(chunk=4, seats=1)
    engine.generate(ask("runs", tuple(range(200, 212))))
    engine.turn()
    for number in range(4):
        engine.prefill(ask("choice" + "s" * number))
    for number in range(60):
        engine.generate(ask(f"left{number}", (100 + number, 1, 2)))
    for number in range(60):
        engine.release(RequestId(f"left{number}"))
    engine.generate(ask("last", (90, 91)))
    waiting = engine.sequences.waiting
    asked = [seq for seq in waiting if seq.follows is not None]
    assert len(asked) == 3
    for heap in (waiting._by_rank, waiting._by_length):
        assert sorted(seq.request_id for _, _, seq in heap) == ["choice", "last"]


def test_if_the_leader_leaves_the_next_one_leads() -> None:
    engine = FakeEngine(chunk=8)
    for name in ("first", "second", "the third", "a fourth"):
        engine.prefill(ask(name))
    engine.turn()
    engine.release(RequestId("first"))
    assert sum(seq.follows is not None for seq in engine.sequences.waiting) == 2
    run(engine)
    assert engine.computed < 8 + 24 + 3 * 8


def test_if_the_first_gives_way_it_is_waited_for_still() -> None:
    engine = FakeEngine(chunk=8, seats=1)
    for name in ("first", "second"):
        engine.generate(ask(name, priority=1))
    engine.turn()
    engine.generate(ask("urgent", (90, 91)))
    assert set(run(engine)) == {"first", "second", "urgent"}
    assert engine.load.preemptions == 1


def one_has_room() -> tuple[FakeEngine, Request, Request]:
    """For both there is room only if what they begin with is there once."""
    shared = tuple(range(40))
    first = Request(RequestId("first"), (*shared, 50), Sampling(20))
    longer = Request(RequestId("longer"), (*shared, *range(60, 65)), Sampling(1))
    return FakeEngine(blocks=16, block_size=4, chunk=64), first, longer


def test_who_found_no_room_does_not_wait_for_the_answer_to_what_it_begins_with() -> None:
    engine, first, longer = one_has_room()
    engine.generate(first)
    engine.generate(longer)
    assert [one.request_id for one in engine.schedule()] == ["first"]
    engine.step()
    assert [one.cached_tokens for one in engine.schedule()] == [40]


def test_nor_does_a_reservation_that_found_none() -> None:
    engine, first, longer = one_has_room()
    engine.generate(first)
    engine.schedule()
    assert engine.reserve(longer) is None
    engine.step()
    reservation = engine.reserve(longer)
    assert reservation is not None
    assert reservation.filled == 40
