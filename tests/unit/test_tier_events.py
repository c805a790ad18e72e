"""Who hears what enters and leaves the tiers knows what is in them, and of what tokens."""

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from engine.cache_events import BlocksRemoved, BlocksStored, CacheEvent, Medium
from engine.request import Request, RequestId, Sampling
from engine.scheduling.cache_log import CacheLog
from engine.scheduling.tier_log import TierLog
from engine.tiers.book import TierBook
from engine.tiers.disk_book import DiskBook
from engine.tiers.host_book import HostBook
from engine.tiers.tiers import Tiers
from tests.fakes.cache_index import CacheIndex
from tests.fakes.engine import FakeEngine
from tests.fakes.tiers import ScriptedDisk, put_tiers_under

SIZE = 4
HOST, DISK = Medium.HOST_MEMORY, Medium.DISK


def engine_with_log(
    chance: Random, slots: int, places: int = 0, **disk: float
) -> tuple[FakeEngine, Tiers, TierLog]:
    engine = FakeEngine(blocks=12, block_size=SIZE, watermark=0)
    made = (lambda host: ScriptedDisk(host, chance, **disk)) if places else None
    tiers = put_tiers_under(engine, slots=slots, places=places, disk=made)
    engine.kv.log = CacheLog(SIZE)
    log = engine.kv.log.add_tiers(tiers.book)
    tiers.book.report_to(log)
    return engine, tiers, log


def request(name: str, tokens: tuple[int, ...], most: int = 1) -> Request:
    return Request(RequestId(name), tokens, Sampling(most, ignore_eos=True))


def run(engine: FakeEngine, *asked: Request) -> list[CacheEvent]:
    for one in asked:
        engine.generate(one)
    events = list[CacheEvent]()
    while engine.load.running or engine.load.waiting or engine.load.fetching:
        events += engine.turn().cache_events
    return [*events, *engine.turn().cache_events]


def in_host(book: TierBook) -> set[bytes]:
    return {key for key in book.host._slot_of if key not in book._arriving}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "disk", [{}, {"late": 0.5}, {"late": 0.5, "fails": 0.1}, {"late": 0.3, "breaks": 0.02}]
)
def test_it_knows_every_block_of_each_tier(seed: int, disk: dict[str, float]) -> None:
    chance, index = Random(seed), CacheIndex(SIZE)
    engine, tiers, log = engine_with_log(chance, 6, places=9, **disk)
    trunks = [tuple(chance.randrange(50) for _ in range(24)) for _ in range(4)]
    heard = Counter[tuple[type[CacheEvent], Medium]]()
    for turn in range(60):
        asked = [
            request(
                f"{turn}/{one}",
                (*chance.choice(trunks)[: chance.randrange(1, 25)], chance.randrange(50)),
                chance.randrange(1, 12),
            )
            for one in range(chance.randrange(4))
        ]
        for event in run(engine, *asked):
            heard[type(event), event.medium] += 1
            index.hear(event)
        assert index.blocks.keys() == engine.kv.pool._block_of.keys()
        assert index.held[HOST].keys() == in_host(tiers.book)
        on_disk = tiers.book.disk._place_of if tiers.book.disk is not None else {}
        assert index.held[DISK].keys() == on_disk.keys()
        anywhere = {key for held in index.held.values() for key in held}
        assert log._blocks.keys() == anywhere, "what blocks were made of is kept, or forgotten"
    assert len(heard) == 2 * len(Medium), heard


def test_what_leaves_together_is_told_together_in_the_order_of_its_prompt() -> None:
    engine, _, _ = engine_with_log(Random(0), slots=12)
    keys, tokens = engine.keys(request("a", tuple(range(41)))), tuple(range(41))
    run(engine, request("a", tokens))
    events = run(engine, request("b", tuple(range(50, 91))))
    told = [one for one in events if isinstance(one, BlocksStored) and one.medium is HOST]
    assert sum(len(one.keys) for one in told) >= 8
    assert len(told) <= 3, "one for each step that evicts"
    for one in told:
        at, end = keys.index(one.keys[0]), keys.index(one.keys[-1]) + 1
        assert one.keys == tuple(keys[at:end])
        assert one.parent == (keys[at - 1] if at else None)
        assert one.tokens == tokens[at * SIZE : end * SIZE]


def test_prompts_that_part_are_told_with_their_trunk_first() -> None:
    trunk, one, other = b"t", b"a", b"b"
    log = TierLog(TierBook(HostBook(1), 1), {trunk, one, other})
    log.describe(BlocksStored((trunk, one), None, tuple(range(2 * SIZE)), "law", "s"))
    log.describe(BlocksStored((other,), trunk, (9, 9, 9, 9), "law", "s"))
    for key in (other, one, trunk):
        log.entered(key, HOST)
    together, apart = log.take()
    assert isinstance(together, BlocksStored)
    assert isinstance(apart, BlocksStored)
    assert {*together.keys, *apart.keys} == {trunk, one, other}
    assert (together.keys[0], together.parent, apart.parent) == (trunk, None, trunk)
    assert {(one.adapter, one.salt) for one in (together, apart)} == {("law", "s")}


def test_what_an_earlier_run_left_is_told_when_its_tokens_are_known() -> None:
    key, other = b"k", b"o"
    book = TierBook(HostBook(4), 1)
    book.add_disk(DiskBook(4, [(key, 0), (other, 1)]))
    log = TierLog(book, {key})
    book.report_to(log)
    log.entered(other, HOST)
    assert not [*log.take()], "nobody knows its tokens"
    log.describe(BlocksStored((key,), None, tuple(range(SIZE))))
    assert [*log.take()] == [BlocksStored((key,), None, tuple(range(SIZE)), medium=DISK)]
    book.lose_disk()
    assert [*log.take()] == [BlocksRemoved((key,), DISK)], "of the other one nobody was told"


@pytest.mark.parametrize("read", [True, False])
def test_what_is_still_read_from_disk_is_not_in_host_memory(read: bool) -> None:
    key, stored = b"k", BlocksStored((b"k",), None, tuple(range(SIZE)))
    book = TierBook(HostBook(4), 1)
    book.add_disk(DiskBook(4, [(key, 0)]))
    log = TierLog(book, {key})
    book.report_to(log)
    assert book.fetch(RequestId("waits"), [key])
    log.describe(stored)  # somebody else has computed it meanwhile
    assert [*log.take()] == [replace(stored, medium=DISK)]
    book.finish_job(book.jobs[0], ok=read)
    at_last = replace(stored, medium=HOST) if read else BlocksRemoved((key,), DISK)
    assert [*log.take()] == [at_last]


def test_what_came_and_went_between_two_steps_is_not_told() -> None:
    memory = {b"k"}
    log = TierLog(TierBook(HostBook(4), 1), memory)
    log.describe(BlocksStored((b"k",), None, tuple(range(SIZE))))
    log.entered(b"k", HOST)
    log.left(b"k", HOST)
    assert not [*log.take()]
    log.entered(b"k", HOST)
    (stored,) = log.take()
    assert isinstance(stored, BlocksStored)
    log.left(b"k", HOST)
    log.entered(b"k", HOST)
    assert not [*log.take()], "it is where it was"
    log.left(b"k", HOST)
    assert [*log.take()] == [BlocksRemoved((b"k",), HOST)]
    assert log._blocks
    memory.clear()
    log.forget(b"k")
    assert not log._blocks
