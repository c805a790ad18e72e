"""How long prompts and short ones share batches, counted in steps."""

from statistics import fmean

import pytest

from engine.request import Request, RequestId, Sampling
from engine.scheduling.watermark import FIRST_GUESS, KEPT, Watermark
from tests.fakes.engine import FakeEngine

CHUNK = 16


def ask(name: str, length: int, answer: int = 1) -> Request:
    return Request(RequestId(name), tuple(f"{name:>{length}}".encode()[::-1]), Sampling(answer))


def steps_until(engine: FakeEngine, name: str) -> int:
    """How many batches until its first token."""
    for step in range(1, 200):
        if any(one.request_id == name for one in engine.turn().sampled):
            return step
    raise AssertionError(f"{name} never got there")


def busy(*lengths: int, **limits: int) -> FakeEngine:
    """Long prompts, under way since a batch."""
    engine = FakeEngine(**{"blocks": 1024, "chunk": CHUNK, **limits})
    for number, length in enumerate(lengths):
        engine.generate(ask(f"long {number}", length))
    engine.turn()
    return engine


def test_a_short_prompt_is_in_the_next_batch_beside_a_long_one() -> None:
    engine = busy(300)
    engine.generate(ask("short", CHUNK // 2))
    engine.schedule()
    lengths = {chunk.seq.request_id: chunk.length for chunk in engine.scheduler.batch}
    assert lengths == {"long 0": CHUNK // 2, "short": CHUNK // 2}
    assert [one.request_id for one in engine.step().sampled] == ["short"]


def test_a_short_prompt_passes_long_ones_that_wait() -> None:
    engine = busy(300, 300, 300)
    engine.generate(ask("short", 3))
    assert steps_until(engine, "short") == 1


def test_a_prompt_of_some_chunks_does_not_wait_for_one_of_many() -> None:
    engine = busy(1000)
    engine.generate(ask("middling", 4 * CHUNK))
    assert steps_until(engine, "middling") == 2 * 4


def test_prompts_of_one_length_go_one_after_the_other() -> None:
    """Side by side each would come as late as the last."""
    engine = busy(8 * CHUNK, 8 * CHUNK)
    assert steps_until(engine, "long 0") == 7
    assert steps_until(engine, "long 1") == 8


def test_who_can_be_done_in_this_batch_is_done_before_one_that_is_a_bit_shorter() -> None:
    engine = FakeEngine(blocks=1024, chunk=CHUNK)
    for number, length in enumerate((CHUNK, CHUNK - 1, CHUNK - 2)):
        engine.generate(ask(str(number), length))
    assert [steps_until(engine, "0"), steps_until(engine, "1")] == [1, 1]


def test_a_flood_of_short_prompts_takes_half_from_a_long_one() -> None:
    engine = busy(20 * CHUNK)
    for number in range(300):
        engine.generate(ask(f"short {number}", 5))
    assert steps_until(engine, "long 0") == 2 * 19


def test_a_batch_too_small_for_all_still_gets_everybody_on() -> None:
    engine = FakeEngine(chunk=1, seats=4)
    for number in range(4):
        engine.generate(ask(str(number), 3, answer=3))
    done = [steps_until(engine, str(number)) for number in range(4)]
    assert sum(done) <= 4 * 5


def test_a_waiting_prompt_that_finds_no_room_is_passed_by_nobody() -> None:
    """What comes free is for him, or the short ones would take it for ever."""
    engine = FakeEngine(blocks=16, block_size=1, chunk=32, watermark=0)
    engine.generate(ask("runs", 10, 4))
    engine.turn()
    engine.generate(ask("large", 12))
    came = 0
    while "large" not in engine.sequences.running:
        engine.generate(ask(f"short {came}", 2, answer=8))
        came += 1
        engine.schedule()
        if "large" in engine.sequences.running:
            break
        assert not any(name.startswith("short") for name in engine.sequences.running)
        engine.step()
    assert came <= 5


def test_who_is_taken_in_has_room_to_grow() -> None:
    """With all that answers may need kept free nobody is ever put back."""
    for growth, preempted in ((1, False), (0, True)):
        engine = FakeEngine(blocks=20, block_size=1, chunk=32, watermark=growth)
        for name in "abcd":
            engine.generate(ask(name, 3, answer=8))
        while engine.sequences.known:
            engine.turn()
        assert (engine.load.preemptions > 0) is preempted


def test_a_reservation_leaves_room_for_its_next_token() -> None:
    """It would be put back in the next step, and what was fetched be computed again."""
    engine = FakeEngine(blocks=8, block_size=1, watermark=0.25)
    assert engine.reserve(ask("a", 4, answer=3))
    assert engine.reserve(ask("b", 4, answer=3)) is None
    assert engine.reserve(ask("c", 3, answer=3)) is None
    assert engine.reserve(ask("d", 2, answer=3))
    for name in "ad":
        engine.fetch(RequestId(name))
        engine.resume(RequestId(name), [0])
    engine.turn()
    assert engine.load.preemptions == 0


def test_a_reservation_leaves_those_that_run_their_share() -> None:
    engine = FakeEngine(blocks=16, block_size=1, watermark=0.5)
    engine.generate(ask("runs", 4, answer=9))
    engine.turn()
    assert engine.reserve(ask("too much", 9, answer=1)) is None
    assert engine.reserve(ask("fits", 8, answer=1))


def test_a_reservation_that_will_grow_leaves_a_share_of_its_own_growth_too() -> None:
    """Half of the other's 8 blocks and of its own 3, but for the one that it takes at once."""
    engine = FakeEngine(blocks=16, block_size=1, watermark=0.5)
    engine.generate(ask("runs", 4, answer=9))
    engine.turn()
    assert engine.reserve(ask("large", 7, answer=4)) is None
    assert engine.reserve(ask("small", 6, answer=4))


def test_where_a_batch_has_one_token_the_first_in_rank_gets_it() -> None:
    engine = FakeEngine(chunk=1)
    engine.generate(ask("long", 6))
    for number in range(9):
        engine.generate(ask(str(number), 1))
    assert steps_until(engine, "long") == 6


def test_the_share_is_a_mean_in_which_the_guess_counts_once_and_later_the_last_32() -> None:
    growth, samples = Watermark(), [FIRST_GUESS]
    for used in range(31):
        growth.record_finish(used / 20)
        samples.append(KEPT * min(used / 20, 1.0))
        assert growth.share == pytest.approx(fmean(samples))
    for _ in range(2):
        before = growth.share
        growth.record_preemption()
        assert growth.share == pytest.approx(before + (1 - before) / 32)
    for _ in range(200):
        growth.record_preemption()
    assert growth.margin(100) == 100


def test_while_those_who_run_take_all_tokens_of_a_batch_nobody_comes_in() -> None:
    engine = FakeEngine(chunk=2)
    for name in "ab":
        engine.generate(ask(name, 1, answer=4))
        engine.turn()
    engine.generate(ask("waits", 1))
    assert engine.schedule() == []
    assert engine.load.waiting == 1


def test_answers_that_end_early_let_more_in() -> None:
    engine = FakeEngine(blocks=64, block_size=1, chunk=64)
    before = engine.sequences.watermark.share
    for number in range(20):
        request = Request(RequestId(str(number)), (1, 2), Sampling(40))
        engine.generate(request)
        engine.turn()
        engine.release(request.request_id)  # a stop string: its stream was closed
    assert engine.sequences.watermark.share < before / 4


def test_an_engine_that_put_somebody_back_keeps_more_free() -> None:
    engine = FakeEngine(blocks=8, block_size=1, chunk=32)
    engine.sequences.watermark.share = before = 0.0
    for name in "ab":
        engine.generate(ask(name, 2, answer=6))
    while not engine.load.preemptions:
        engine.turn()
    assert engine.sequences.watermark.share > before


@pytest.mark.parametrize("way", ["generate", "prefill", "reserve"])
def test_who_leaves_before_its_answer_goes_on_here_says_nothing_of_answers(way: str) -> None:
    engine, said = FakeEngine(chunk=4), () if way == "generate" else (5, 6)
    request = Request(RequestId("leaves"), (1,) * 9, Sampling(40), generated=said)
    before = engine.sequences.watermark.share
    {"generate": engine.generate, "prefill": engine.prefill, "reserve": engine.reserve}[way](
        request
    )
    engine.turn()
    engine.release(request.request_id)
    assert engine.sequences.watermark.share == before


def test_the_first_and_the_shortest_are_found_when_many_have_left() -> None:
    """The queue is put in order then."""
    engine = FakeEngine(seats=1, blocks=256)
    engine.generate(Request(RequestId("runs"), (1,), priority=-100))
    engine.turn()
    for number in range(70):
        prompt = (number,) * (100 - number)
        engine.generate(Request(RequestId(f"{number}"), prompt, priority=-number))
    for number in range(3, 70):
        engine.release(RequestId(f"{number}"))
    engine.generate(Request(RequestId("last"), (90,) * 200))
    waiting = engine.sequences.waiting
    assert len(waiting._by_length) < 10
    assert [one and one.request_id for one in (waiting.first, waiting.shortest)] == ["2", "2"]
