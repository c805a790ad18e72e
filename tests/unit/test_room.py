"""Who gets blocks when there are too few, and what looking for some costs."""

from weakref import ref

import pytest
from msgspec.structs import replace

from engine.errors import RequestTooLong
from engine.request import Request, RequestId, Sampling
from engine.scheduling.kv_manager import KvManager
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from engine.scheduling.sequence_manager import Limits, SequenceManager
from tests.fakes.drafter import Oracle
from tests.fakes.engine import FakeEngine
from tests.unit.test_tiers import LONG, ask, on_disk


class Counting(KvManager):
    """Counts how often somebody looked what of a prompt is cached."""

    looks = 0

    def match(self, seq: Sequence, *, state_comes: bool = False) -> None:
        self.looks += 1
        super().match(seq, state_comes=state_comes)


def sequence(name: str, length: int) -> Sequence:
    return Sequence(Request(RequestId(name), tuple(range(length)), Sampling(1)))


def test_a_refused_reservation_costs_nothing_until_blocks_come_back() -> None:
    kv = Counting(4, 4)
    scheduler = Scheduler(SequenceManager(kv, Limits(64, 8)))
    assert scheduler.reserve(sequence("first", 9))
    waits = sequence("waits", 8)
    assert [scheduler.reserve(waits) for _ in range(5)] == [None] * 5
    assert kv.looks == 2
    scheduler.remove(RequestId("first"))
    assert scheduler.reserve(waits)


def test_a_prompt_that_waits_costs_nothing_until_blocks_come_back() -> None:
    kv = Counting(4, 4)
    scheduler = Scheduler(SequenceManager(kv, Limits(64, 8)))
    assert scheduler.reserve(sequence("first", 9))
    scheduler.add(sequence("waits", 8))
    for _ in range(5):
        assert scheduler.schedule() == []
    assert kv.looks == 2
    scheduler.remove(RequestId("first"))
    assert [one.request_id for one in scheduler.schedule()] == ["waits"]


def test_who_was_preempted_goes_on_before_anybody_new_comes_in() -> None:
    """Short prompts come all the time, and one always fits into what another has left."""
    engine, came, finished = (
        FakeEngine(blocks=12, block_size=1, chunk=12, watermark=0),
        0,
        list[str](),
    )
    for name in ("older", "newer"):
        engine.generate(Request(RequestId(name), tuple(name.encode()), Sampling(6)))
    for _ in range(60):
        while engine.reserve(short := Request(RequestId(f"short {came}"), (0, 1), Sampling(3))):
            engine.resume(short.request_id, [0])
            came += 1
        finished += [one.request_id for one in engine.turn().sampled if one.finish]
    assert engine.sequences.preemptions > 0
    assert {"older", "newer"} <= set(finished)
    assert "short 9" in finished  # and they came in all the same


def test_what_nobody_can_find_again_is_handed_out_first() -> None:
    kv = KvManager(4, 4)
    known, half, new = sequence("known", 4), sequence("half", 3), sequence("new", 12)
    for seq in (known, half):
        kv.grow(seq, 4)
        seq.computed = len(seq.tokens)
        kv.publish(seq)
    for seq in (known, half):
        kv.free(seq)
    assert kv.grow(new, 12)  # all blocks but one
    again = sequence("known", 5)
    kv.match(again)
    assert again.computed == 4


def test_who_must_compute_all_does_not_adopt_what_it_has_published_itself() -> None:
    kv, seq = KvManager(4, 4), sequence("pooled", 9)
    seq.recompute_all = True
    assert kv.grow(seq, 9)
    seq.computed = 9
    kv.publish(seq)
    kv.free(seq)
    kv.match(seq)
    assert (seq.computed, seq.blocks) == (0, [])


def test_of_what_nobody_uses_the_ends_of_prompts_leave_the_cache_first() -> None:
    """Whoever begins alike finds as much as can be."""
    kv, long, new = KvManager(5, 4), sequence("long", 16), sequence("new", 12)
    assert kv.grow(long, 16)
    long.computed = 16
    kv.publish(long)
    kv.free(long)
    assert kv.grow(new, 12)  # the blank one, and two that are cached
    assert kv.pool.known(long.keys) == 2


def test_who_was_asked_for_lately_stays_in_the_cache() -> None:
    engine = FakeEngine(blocks=5, watermark=0)
    one, other, third = (
        Request(RequestId(name), tuple(name.encode()), Sampling(1))
        for name in ("asked for", "not again", "the third")
    )
    for number, request in enumerate((one, other, one, third)):
        engine.generate(replace(request, request_id=RequestId(str(number))))
        engine.turn()
    known = [engine.known(engine.keys(request)) for request in (one, other, third)]
    assert known == [2, 0, 2]


def test_what_a_launched_step_may_use_is_handed_out_last() -> None:
    """The transfer thread would have to wait for that step."""
    kv = KvManager(5, 4)
    known, half, old = (sequence(name, 4) for name in ("known", "half", "old"))
    new = sequence("new", 20)
    for seq in (known, half, old):
        assert kv.grow(seq, 4)
    known.computed = 4
    kv.publish(known)
    kv.free(known)
    kv.free(old)
    kv.pool.note_launch()
    in_step = half.blocks
    kv.free(half)
    kv.check()
    assert kv.grow(new, 16)
    assert not kv.pool.may_be_in_launched_step(new.blocks)
    assert kv.grow(new, 20)
    assert new.blocks[-1:] == in_step
    assert kv.pool.may_be_in_launched_step(new.blocks)
    kv.pool.note_launch()  # the step before it has ended
    assert not kv.pool.may_be_in_launched_step(new.blocks)


@pytest.mark.parametrize(("way", "announced"), [("reserve", []), ("generate", ["waits"])])
def test_who_gave_way_is_not_announced_again(way: str, announced: list[str]) -> None:
    """A reservation was its announcement."""
    engine = FakeEngine(blocks=12, block_size=1, chunk=12, watermark=0)
    waits = Request(RequestId("waits"), (0, 1, 2, 3), Sampling(8))
    urgent = Request(RequestId("urgent"), tuple(range(9, 17)), Sampling(2), priority=-1)
    if way == "reserve":
        assert engine.reserve(waits)
        engine.fetch(waits.request_id)
        engine.resume(waits.request_id, [0])
    else:
        engine.generate(waits)
    told, ended = list[RequestId](), list[RequestId]()
    while len(ended) < 2:
        told += [one.request_id for one in engine.schedule()]
        ended += [one.request_id for one in engine.step().sampled if one.finish]
        if urgent.request_id not in {*engine.sequences.known, *ended}:
            engine.generate(urgent)
    assert engine.sequences.preemptions == 1
    assert told == [*announced, "urgent"]


def test_an_empty_line_keeps_nothing_alive() -> None:
    scheduler = Scheduler(SequenceManager(KvManager(4, 4), Limits(64, 8)))
    scheduler.add(sequence("gone", 9))
    gone = ref(scheduler.find(RequestId("gone")))
    scheduler.remove(RequestId("gone"))
    assert gone() is None


def test_what_a_drafter_noted_of_blocks_goes_with_them() -> None:
    engine, gives_way = FakeEngine(seats=1), RequestId("gives way")
    engine.generate(Request(gives_way, (1, 2), Sampling(6), priority=1))
    engine.turn()
    seq = engine.sequences.known[gives_way]
    seq.drafting = "this many tokens have draft KV in these blocks"
    engine.generate(Request(RequestId("urgent"), (3, 4), Sampling(1)))
    engine.turn()
    assert engine.load.preemptions == 1
    assert seq.drafting is None


def test_drafts_take_blocks_but_none_that_a_next_token_may_need() -> None:
    """With one token to a block, two answers have 8 of 12, and each may need another."""
    engine = FakeEngine(blocks=12, block_size=1, chunk=64, watermark=0)
    engine.scheduler.drafter = Oracle(length=lambda: 2, right=lambda: 0)
    for name in ("one", "other"):
        engine.generate(Request(RequestId(name), tuple(name.encode()[:3]), Sampling(6)))
    engine.turn()
    engine.schedule()
    assert sorted(len(chunk.drafts) for chunk in engine.scheduler.batch) == [0, 2]
    assert engine.load.free_blocks == 2


def test_a_reservation_is_not_held_up_by_who_came_after_its_first_try() -> None:
    engine = FakeEngine(blocks=8, block_size=1, watermark=0)
    engine.generate(Request(RequestId("runs"), (3,) * 4, Sampling(1)))
    engine.schedule()
    reserved = Request(RequestId("r"), (5,) * 6, Sampling(1))
    assert engine.reserve(reserved) is None
    engine.generate(Request(RequestId("came after"), (4,) * 6, Sampling(1)))
    engine.step()
    assert engine.sequences.waiting.first
    assert engine.reserve(reserved)


def test_nothing_is_read_from_disk_for_who_finds_no_room() -> None:
    """It would take slots that others need, and be driven out before there is room."""
    engine, *_ = on_disk()
    parked = RequestId("parked")
    engine.prefill(Request(parked, (90,) * 16))
    while parked not in engine.sequences.parked:
        engine.turn()
    engine.generate(Request(RequestId("again"), LONG, Sampling(2)))
    engine.schedule()
    assert (engine.load.fetching, engine.load.waiting) == (0, 1)
    engine.release(parked)
    engine.schedule()
    assert (engine.load.fetching, engine.load.waiting) == (1, 1)


def test_behind_a_refused_reservation_the_shortest_ahead_of_it_goes_first_still() -> None:
    engine = FakeEngine(blocks=64, block_size=1, chunk=16, watermark=0)
    engine.prefill(Request(RequestId("parked"), (1,) * 3))
    engine.turn()
    for name, length in (("long", 30), ("middling", 12), ("short", 3)):
        engine.generate(Request(RequestId(name), (length,) * length, Sampling(1)))
    assert engine.reserve(Request(RequestId("refused"), (2,) * 62, Sampling(1))) is None
    admitted = [one.request_id for one in engine.schedule()]
    assert admitted == ["long", "short", "middling"]


def test_a_refused_reservation_does_not_hold_up_a_prompt_that_runs_alone() -> None:
    engine = FakeEngine(blocks=64, block_size=1, chunk=16, watermark=0)
    engine.generate(Request(RequestId("long"), (1,) * 40, Sampling(1)))
    engine.turn()
    assert engine.reserve(Request(RequestId("refused"), (2,) * 62, Sampling(1))) is None
    assert engine.turn().num_tokens == 16


@pytest.mark.parametrize("behind", ["a refused reservation", "nobody"])
def test_who_is_urgent_and_cannot_come_in_changes_no_share_of_those_who_run(
    behind: str,
) -> None:
    engine, refused = FakeEngine(blocks=128, block_size=1, chunk=16, watermark=0), (2,) * 120
    engine.prefill(Request(RequestId("parked"), (1,) * 10))
    engine.turn()
    for name, length in (("long", 40), ("short", 20)):
        engine.generate(Request(RequestId(name), (length,) * length, Sampling(1), priority=1))
    engine.turn()
    if behind == "nobody":
        engine.generate(Request(RequestId("urgent"), refused, Sampling(1)))
    else:
        assert engine.reserve(Request(RequestId("refused"), refused, Sampling(1))) is None
        engine.generate(Request(RequestId("urgent"), (3,) * 5, Sampling(1)))
    assert engine.schedule() == []
    lengths = {chunk.seq.request_id: chunk.length for chunk in engine.scheduler.batch}
    assert lengths == {"long": 8, "short": 8}


def test_what_all_blocks_together_cannot_hold_is_refused_for_good() -> None:
    scheduler = Scheduler(SequenceManager(KvManager(4, 4), Limits(64, 8)))
    scheduler.add(sequence("fits", 15))
    with pytest.raises(RequestTooLong, match="large: 17 tokens never fit"):
        scheduler.add(sequence("large", 16))


def test_who_leaves_as_soon_as_its_kv_has_been_read_leaves_nothing_behind() -> None:
    engine, tiers, *_ = on_disk()
    engine.generate(ask("leaves"))
    engine.turn()
    tiers.collect_finished_jobs()
    engine.release(RequestId("leaves"))
    assert engine.turn().num_tokens == 0
    engine.sequences.check_idle()


def test_who_was_preempted_is_read_from_disk_again() -> None:
    engine, tiers, *_ = on_disk()
    engine.generate(ask("again", answer=8))
    while not engine.load.running:
        engine.turn()
    read = tiers.book.load[1].loaded
    for name in range(30, 36):
        engine.generate(ask(f"urgent {name}", (name,) * 16, priority=-1))
    while engine.load.running or engine.load.waiting:
        engine.turn()
    assert engine.load.preemptions == 1
    assert tiers.book.load[1].loaded > read > 0
