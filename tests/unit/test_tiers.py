"""What is kept below KV memory, who waits for it and for how long."""

from collections.abc import Sequence
from random import Random

import pytest

from api.generator import Leg
from engine.request import Request, RequestId, Sampling
from engine.tiers.book import TierBook
from engine.tiers.disk_book import DiskBook
from engine.tiers.host_book import HostBook
from engine.tiers.moves import DiskOperation
from engine.tiers.tiers import Tiers
from kv_transfer.local.connector import LocalSink, LocalSource
from tests.fakes.engine import FakeEngine
from tests.fakes.model import alone
from tests.fakes.node import node_loop
from tests.fakes.tiers import ScriptedDisk, put_tiers_under

LONG = tuple(range(16))
OTHERS = [tuple(range(start, start + 16)) for start in (20, 21, 22)]
STRANGERS = [tuple(range(start, start + 16)) for start in (31, 32, 33)]


def ask(
    name: str, prompt: tuple[int, ...] = LONG, answer: int = 2, priority: int = 0
) -> Request:
    return Request(RequestId(name), prompt, Sampling(answer), priority=priority)


def run(engine: FakeEngine, request: Request) -> tuple[int, list[int]]:
    """How much of its prompt was cached, and its answer."""
    engine.generate(request)
    cached, answer = 0, list[int]()
    for _ in range(100):
        ours = [one for one in engine.schedule() if one.request_id == request.request_id]
        cached += sum(one.cached_tokens for one in ours)
        for one in engine.step().sampled:
            if one.request_id == request.request_id:
                answer += one.tokens
        if len(answer) == request.sampling.max_tokens:
            return cached, answer
    raise AssertionError("it does not end")


def drive_out(engine: FakeEngine, prompts: Sequence[tuple[int, ...]] = OTHERS) -> None:
    """Other prompts take all blocks, one after the other."""
    for prompt in prompts:
        run(engine, ask(f"other {prompt[0]}", prompt))


def small(slots: int = 64) -> tuple[FakeEngine, Tiers]:
    """Room for one long prompt and a bit."""
    engine = FakeEngine(blocks=6, block_size=4)
    return engine, put_tiers_under(engine, slots=slots)


def on_disk(**chance: float) -> tuple[FakeEngine, Tiers, ScriptedDisk, list[float]]:
    """The long prompt is on disk, and nowhere else; a clock to hold in your hand."""
    engine, now = FakeEngine(blocks=8, block_size=4), [0.0]
    tiers = put_tiers_under(
        engine,
        slots=8,
        places=100,
        disk=lambda host: ScriptedDisk(host, Random(0), **chance),
        clock=lambda: now[0],
    )
    assert isinstance(tiers.disk, ScriptedDisk)
    run(engine, ask("before"))
    drive_out(engine)
    drive_out(engine)
    tiers.collect_finished_jobs()
    return engine, tiers, tiers.disk, now


def test_what_comes_back_by_copy_counts_as_cached() -> None:
    engine, _ = small()
    assert run(engine, ask("first")) == (0, alone(ask("first")))
    drive_out(engine)
    assert run(engine, ask("again")) == (12, alone(ask("again")))


def test_without_a_slot_it_is_computed() -> None:
    engine, _ = small(slots=1)
    run(engine, ask("first"))
    drive_out(engine)
    cached, answer = run(engine, ask("again"))
    assert cached < 12
    assert answer == alone(ask("again"))


def test_another_salt_does_not_find_it() -> None:
    engine, _ = small()
    run(engine, ask("first"))
    drive_out(engine)
    salted = Request(RequestId("salted"), LONG, Sampling(2), cache_salt="other")
    assert run(engine, salted) == (0, alone(salted))


def test_what_a_reservation_drives_out_is_kept_before_others_write_to_its_blocks() -> None:
    engine, _ = small()
    run(engine, ask("first"))
    reserved = engine.reserve(ask("pulled", OTHERS[0], answer=5))
    assert reserved
    engine.fetch(RequestId("pulled"))  # before the next batch
    engine.resume(RequestId("pulled"), [1])
    engine.release(RequestId("pulled"))
    assert run(engine, ask("again"))[1] == alone(ask("again"))


def test_a_reservation_skips_what_comes_back() -> None:
    engine, _ = small()
    run(engine, ask("first"))
    drive_out(engine)
    reserved = engine.reserve(ask("pulled", answer=5))
    assert reserved
    assert reserved.filled == 12
    assert engine.holds_prompt(RequestId("pulled"), 3)


def test_a_gap_is_filled_and_what_is_behind_it_is_shared() -> None:
    engine, tiers = small()
    run(engine, ask("first"))
    kv = engine.kv
    others = kv.pool.take(len(kv.pool._blank))
    *_, head = kv.pool._reusable
    kv.pool._reusable.move_to_end(head, last=False)
    loaded = tiers.book.load[0].loaded
    engine.generate(ask("one block", (49, 49, 49), answer=1))
    engine.turn()
    kv.pool.release(others)
    assert run(engine, ask("again")) == (12, alone(ask("again")))
    assert tiers.book.load[0].loaded - loaded <= 2


def test_what_was_preempted_comes_back_by_copy() -> None:
    engine = FakeEngine(blocks=8, block_size=2, watermark=0)
    tiers = put_tiers_under(engine, slots=64)
    asked = [ask(f"{n}", (n, n + 1, n + 2), answer=10) for n in range(3)]
    answers: dict[str, list[int]] = {request.request_id: [] for request in asked}
    for request in asked:
        engine.generate(request)
    while engine.load.waiting or engine.load.running:
        for one in engine.turn().sampled:
            answers[one.request_id] += one.tokens
    assert engine.load.preemptions
    assert tiers.book.load[0].loaded
    assert answers == {request.request_id: alone(request) for request in asked}


def test_from_disk_it_comes_back_too() -> None:
    engine, tiers, disk, _ = on_disk()
    engine.generate(ask("again"))
    assert (engine.schedule(), engine.load.fetching, engine.load.waiting) == ([], 1, 1)
    assert disk.done
    (admitted,) = engine.schedule()
    assert admitted.cached_tokens == 12
    assert tiers.book.load[1].loaded == 3
    tiers.book.check_idle()  # while it runs, others can fetch into host memory


def test_who_waits_for_the_disk_holds_nothing_and_nobody_up() -> None:
    engine, _, disk, _ = on_disk()
    disk.stopped = True
    engine.generate(ask("waits", priority=-1))
    free = engine.load.free_blocks
    engine.turn()
    assert (engine.load.fetching, engine.load.free_blocks) == (1, free)
    assert run(engine, ask("meanwhile", (40,) * 8)) == (0, alone(ask("meanwhile", (40,) * 8)))
    disk.stopped = False
    engine.schedule()
    assert engine.load.fetching == 0
    assert engine.load.running == 1


def test_nobody_waits_for_a_disk_that_hangs_longer_than_told_nor_twice() -> None:
    engine, tiers, disk, now = on_disk()
    drive_out(engine, STRANGERS)
    tiers.collect_finished_jobs()
    disk.stopped = True
    engine.generate(ask("waits", answer=3))
    engine.turn()
    now[0] += tiers.fetch_s * 0.9
    assert engine.turn().num_tokens == 0
    now[0] += tiers.fetch_s * 0.2
    assert engine.turn().num_tokens > 0
    assert engine.load.fetching == 0
    assert run(engine, ask("next", OTHERS[0])) == (0, alone(ask("next", OTHERS[0])))
    disk.stopped = False
    drive_out(engine, STRANGERS)
    assert run(engine, ask("later", OTHERS[0])) == (12, alone(ask("later", OTHERS[0])))


def test_a_lost_disk_ends_all_waits_and_is_told() -> None:
    engine, tiers, disk, _ = on_disk()
    disk.stopped = True
    engine.generate(ask("waits"))
    engine.turn()
    disk.broken = True
    assert engine.turn().num_tokens > 0
    assert [(tier.tier, tier.on) for tier in engine.load.tiers] == [
        ("cpu", True),
        ("disk", False),
    ]
    assert tiers.book.load[1].blocks == 0


def test_who_leaves_while_it_waits_leaves_nothing_behind() -> None:
    engine, tiers, disk, _ = on_disk()
    disk.stopped = True
    engine.generate(ask("waits"))
    engine.turn()
    engine.release(RequestId("waits"))
    engine.sequences.check_idle()
    disk.stopped = False
    assert engine.turn().num_tokens == 0
    tiers.book.check()
    assert engine.load.waiting == 0


def test_a_slot_is_not_given_away_while_the_disk_fills_it() -> None:
    """Its request left, and others want slots."""
    engine, tiers, disk, _ = on_disk()
    disk.stopped = True
    engine.generate(ask("waits"))
    engine.turn()
    engine.release(RequestId("waits"))
    drive_out(engine, STRANGERS)
    tiers.book.check()
    disk.stopped = False
    engine.turn()
    tiers.book.check()
    assert run(engine, ask("again"))[1] == alone(ask("again"))


def test_a_node_looks_again_soon_while_kv_comes_from_disk() -> None:
    engine, _, disk, _ = on_disk()
    regions = engine.kv_regions
    source = LocalSource("e", ("h", 1), regions, "fake", float)
    loop = node_loop(engine, source, LocalSink({}, regions, "fake", float), float)
    disk.stopped = True
    loop.submit(ask("waits"), Leg(), 0.0)
    loop.prepare()
    assert loop.has_waiting_legs
    disk.stopped = False
    loop.prepare()
    assert not loop.has_waiting_legs


def test_what_came_back_is_shared_with_who_comes_next() -> None:
    engine, tiers = small()
    run(engine, ask("first"))
    drive_out(engine)
    assert run(engine, ask("again", answer=1))[0] == 12
    loaded = tiers.book.load[0].loaded
    assert run(engine, ask("next", answer=1))[0] == 12
    assert tiers.book.load[0].loaded == loaded


@pytest.mark.parametrize("tier", ["cpu", "disk"])
def test_what_was_asked_for_lately_is_given_up_last(tier: str) -> None:
    book = HostBook(2) if tier == "cpu" else DiskBook(2)
    for key in (b"1", b"2", b"3"):
        if isinstance(book, HostBook):
            book.place(key)
        else:
            book.begin(key)
            book.written(key)
        book.find(b"1")
    assert [book.find(key) is not None for key in (b"1", b"2", b"3")] == [True, False, True]


def test_what_had_to_be_computed_is_counted_in_each_tier() -> None:
    engine, tiers, _, _ = on_disk()
    before = [tier.misses for tier in tiers.book.load]
    for name in ("new", "cached by then"):
        run(engine, ask(name, (9,) * 12))
    assert [tier.misses for tier in tiers.book.load] == [count + 2 for count in before]


def test_what_could_not_be_read_is_not_looked_for_again() -> None:
    """It is computed, and may then be written again."""
    book, key, waits = TierBook(HostBook(4), 1), b"key", RequestId("waits")
    book.add_disk(DiskBook(4, [(key, 2)]))
    assert book.fetch(waits, [key])
    (read,) = book.jobs
    book.finish_job(read, ok=False)
    assert book.take_ended_fetches() == [waits]
    assert not book.restore(key, 0)
    book.release(waits)
    assert not book.fetch(waits, [key])
    book.store(key, 0)
    assert book.jobs[1].operation is DiskOperation.WRITE
    book.check()
