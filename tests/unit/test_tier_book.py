"""What host memory keeps for whom, when not everybody's KV fits into it."""

import pytest

from engine.cache_events import Medium
from engine.request import Request, RequestId
from engine.scheduling.kv_manager import KvManager
from engine.scheduling.sequence import Sequence
from engine.tiers.book import TierBook
from engine.tiers.disk_book import DiskBook
from engine.tiers.host_book import HostBook
from engine.tiers.moves import Copy, DiskOperation
from tests.unit.test_tiers import OTHERS, ask, drive_out, run, small

ONE, TWO, THREE, FOUR, FIVE = KEYS = [b"1", b"2", b"3", b"4", b"5"]
SLOTS = 4


def full_disk() -> TierBook:
    """All keys are on disk, none in host memory."""
    book = TierBook(HostBook(SLOTS), 1)
    book.add_disk(DiskBook(len(KEYS), [(key, place) for place, key in enumerate(KEYS)]))
    return book


def reads(book: TierBook) -> list[bytes]:
    return [job.key for job in book.jobs if job.operation is DiskOperation.READ]


def test_one_request_keeps_no_more_than_half_of_the_slots() -> None:
    book = full_disk()
    assert book.fetch(RequestId("first"), KEYS)
    assert reads(book) == [ONE, TWO]
    assert not book.fetch(RequestId("second"), [THREE])
    book.release(RequestId("first"))
    assert book.fetch(RequestId("second"), [THREE])
    book.check()


def test_slots_that_are_still_being_filled_for_nobody_are_not_given_away() -> None:
    """Requests that came, asked for KV and left: the disk still writes to all slots."""
    book = full_disk()
    for name, keys in (("first", [ONE, TWO]), ("second", [THREE, FOUR])):
        assert book.fetch(RequestId(name), keys)
        book.release(RequestId(name))
    assert not book.fetch(RequestId("third"), [FIVE])
    book.check()
    assert reads(book) == [ONE, TWO, THREE, FOUR]
    for job in book.jobs:
        book.finish_job(job, ok=True)
    assert book.fetch(RequestId("third"), [FIVE])
    book.check()


def test_what_a_prompt_touches_stays_longest_and_its_beginning_longer_than_its_end() -> None:
    book = TierBook(HostBook(3), 1)
    for block, key in enumerate((ONE, TWO, THREE)):
        book.store(key, block)
    book.touch([TWO, ONE])
    book.store(FOUR, 3)
    book.store(FIVE, 4)
    kept = [key for key in KEYS if book.restore(key, 5)]
    assert kept == [TWO, FOUR, FIVE]


def test_what_a_prompt_needs_is_not_driven_out_by_the_blocks_that_it_takes() -> None:
    engine, _ = small(slots=6)
    run(engine, ask("first"))
    drive_out(engine, OTHERS[:2])
    assert run(engine, ask("again"))[0] == 12


def test_what_kv_memory_has_is_not_read_from_disk_and_what_nobody_wants_is_noticed() -> None:
    kv, tokens = KvManager(8, 4), tuple(range(13))
    first, longer = (
        Sequence(Request(RequestId(str(count)), tokens[:count])) for count in (4, 13)
    )
    kv.lower_tiers = book = TierBook(HostBook(SLOTS), 1)
    keys = kv.keys(longer)
    book.add_disk(DiskBook(3, [(key, place) for place, key in enumerate(keys)]))
    assert kv.grow(first, 4)
    first.computed = 4
    kv.publish(first)
    assert kv.fetch(longer)
    assert reads(book) == keys[1:]
    kv.free(first)
    with pytest.raises(AssertionError, match="kept for nobody: "):
        kv.check_idle()
    kv.release_fetched(longer)
    kv.check_idle()


def test_a_disk_that_there_never_was_is_not_told_of() -> None:
    assert [tier.tier for tier in TierBook(HostBook(SLOTS), 1).load] == ["cpu"]
    assert [tier.tier for tier in full_disk().load] == ["cpu", "disk"]


def test_a_place_on_disk_that_is_free_is_taken_before_a_key_loses_its_own() -> None:
    book = DiskBook(4, [(ONE, 0), (TWO, 2)])  # place 1 was free in an earlier run
    assert [book.begin(key) for key in (THREE, FOUR)] == [1, 3]
    assert book.begin(FOUR) is None, "it is being written"
    book.forget(ONE)
    assert book.begin(FIVE) == 0
    assert book.find(TWO) == 2
    book.check()


def test_a_key_that_lost_its_place_while_it_was_read_may_turn_out_unreadable() -> None:
    """Its place is another's by then, and stays so."""
    book = DiskBook(1, [(ONE, 0)])
    assert book.find(ONE) == 0
    assert book.begin(TWO) == 0
    book.forget(ONE)
    book.written(TWO)
    assert (book.find(ONE), book.find(TWO)) == (None, 0)
    book.check()


def test_a_block_whose_bytes_are_still_being_read_is_not_restored() -> None:
    book = full_disk()
    assert book.fetch(RequestId("first"), [ONE])
    (job,) = book.jobs
    assert not book.restore(ONE, 0)
    assert not book.copies
    book.finish_job(job, ok=True)
    assert book.restore(ONE, 0)
    assert book.copies == [Copy(0, job.slot, out=False)]


def test_while_reads_are_overdue_nothing_more_is_fetched() -> None:
    book, first, second = full_disk(), RequestId("first"), RequestId("second")
    assert book.fetch(first, [ONE, TWO])
    book.stop_waiting(first)
    assert (book.take_ended_fetches(), book.waiting) == ([first], [])
    book.release(first)
    for job in book.jobs[:]:
        assert not book.fetch(second, [THREE])
        book.finish_job(job, ok=True)
    assert not book.take_ended_fetches(), "it has ended once"
    assert book.fetch(second, [THREE])
    book.check()


def test_reads_of_two_that_gave_up_are_all_overdue_until_they_end() -> None:
    book, owners = full_disk(), [RequestId("first"), RequestId("second")]
    for owner, key in zip(owners, (ONE, TWO), strict=True):
        assert book.fetch(owner, [key])
    for owner in owners:
        book.stop_waiting(owner)
        book.release(owner)
    for job in book.jobs[::-1]:
        assert not book.fetch(RequestId("third"), [THREE])
        book.finish_job(job, ok=True)
    assert book.fetch(RequestId("third"), [THREE])


def test_what_is_behind_a_gap_is_not_read() -> None:
    """It could not be used."""
    book = TierBook(HostBook(2 * SLOTS), 1)
    book.add_disk(DiskBook(4, [(ONE, 0), (THREE, 2)]))
    assert book.fetch(RequestId("first"), [ONE, TWO, THREE])
    assert reads(book) == [ONE]


def test_what_is_behind_a_key_in_host_memory_is_read_and_both_are_kept() -> None:
    book, first = full_disk(), RequestId("first")
    book.store(ONE, 0)
    assert book.fetch(first, [ONE, TWO])
    assert reads(book) == [TWO]
    for block, key in enumerate((b"6", b"7", b"8")):
        book.store(key, block)
    assert book.restore(ONE, 5)
    book.check()


def test_a_fetch_ends_once_whatever_happens_to_its_disk_afterwards() -> None:
    book, first = full_disk(), RequestId("first")
    assert book.fetch(first, [ONE])
    book.finish_job(book.jobs[0], ok=True)
    book.stop_waiting(first)  # its time was over in the same turn
    book.lose_disk()
    assert book.take_ended_fetches() == [first]


def test_at_most_half_of_the_slots_wait_to_be_written() -> None:
    book = TierBook(HostBook(SLOTS), 1)
    book.add_disk(DiskBook(len(KEYS)))
    for block, key in enumerate((ONE, TWO, THREE)):
        book.store(key, block)
    assert [job.key for job in book.jobs] == [ONE, TWO]
    assert book.restore(THREE, 3)
    book.finish_job(book.jobs[0], ok=True)
    book.store(FOUR, 4)
    assert [job.key for job in book.jobs] == [ONE, TWO, FOUR]
    book.check()


def test_what_could_not_be_read_is_nowhere_and_holds_up_nobody() -> None:
    book, first = full_disk(), RequestId("first")
    assert book.fetch(first, [ONE, TWO])
    book.finish_job(book.jobs[0], ok=False)
    assert book.waiting == [first]
    assert not [*book.media_of(ONE)]
    book.finish_job(book.jobs[1], ok=True)
    assert book.take_ended_fetches() == [first]
    assert not book.restore(ONE, 0)
    assert book.restore(TWO, 1)
    book.release(first)
    book.check()
    book.check_idle()


def test_of_a_disk_that_is_lost_nothing_is_left_and_nobody_waits_for_it() -> None:
    book, first = full_disk(), RequestId("first")
    book.store(FIVE, 0)  # which the disk has already
    assert book.fetch(first, [ONE])
    book.lose_disk()
    assert book.take_ended_fetches() == [first]
    book.release(first)
    for job in book.jobs:
        book.finish_job(job, ok=False)
    assert not book.fetch(first, [TWO])
    assert [[*book.media_of(key)] for key in (ONE, FIVE)] == [[], [Medium.HOST_MEMORY]]
    assert [(tier.tier, tier.blocks) for tier in book.load] == [("cpu", 1), ("disk", 0)]
    book.check()


def test_nobody_waits_for_what_a_lost_disk_still_reads_for_nobody() -> None:
    book, first = full_disk(), RequestId("first")
    assert book.fetch(first, [ONE])
    book.release(first)
    book.lose_disk()
    assert not book.fetch(RequestId("second"), [ONE])
    book.check_idle()


def test_a_disk_without_room_for_anything_is_off() -> None:
    book = TierBook(HostBook(SLOTS), 1)
    book.add_disk(DiskBook(len(KEYS)))
    book.store(ONE, 0)
    assert book.load[1].on
    book.finish_job(book.jobs[0], ok=False)
    assert not book.load[1].on
    book.store(TWO, 1)
    assert len(book.jobs) == 1
    book.check()


def test_each_tier_counts_what_it_took_gave_and_did_not_have() -> None:
    book = TierBook(HostBook(SLOTS), 1)
    book.add_disk(DiskBook(len(KEYS)))

    def counts() -> list[tuple[int, int, int]]:
        return [(tier.stored, tier.loaded, tier.misses) for tier in book.load]

    assert counts() == [(0, 0, 0), (0, 0, 0)]
    for block, key in enumerate(KEYS):  # the last takes the slot of the first
        book.store(key, block)
        book.finish_job(book.jobs.pop(), ok=key != FIVE)
    assert counts() == [(5, 0, 0), (4, 0, 0)]
    assert book.fetch(RequestId("first"), [ONE])
    book.finish_job(book.jobs.pop(), ok=True)
    assert book.restore(ONE, 5)
    assert book.restore(FIVE, 6)
    book.count_misses(3)
    assert counts() == [(5, 2, 3), (4, 1, 3)]


def test_a_key_that_could_not_be_read_is_no_loss_of_who_waits_for_another() -> None:
    book, first, second = full_disk(), RequestId("first"), RequestId("second")
    assert book.fetch(first, [ONE])
    assert book.fetch(second, [TWO])
    book.finish_job(book.jobs[0], ok=False)
    assert (book.take_ended_fetches(), book.waiting) == ([first], [second])
    book.finish_job(book.jobs[1], ok=True)
    assert book.take_ended_fetches() == [second]
    assert book.restore(TWO, 0)
    book.check()
