"""What host memory keeps for whom, when not everybody's KV fits into it."""

from engine.request import RequestId
from engine.tiers.book import TierBook
from engine.tiers.disk_book import DiskBook
from engine.tiers.host_book import HostBook
from engine.tiers.moves import DiskOperation

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


def test_a_disk_that_there_never_was_is_not_told_of() -> None:
    assert [tier.tier for tier in TierBook(HostBook(SLOTS), 1).load] == ["cpu"]
    assert [tier.tier for tier in full_disk().load] == ["cpu", "disk"]


def test_a_place_on_disk_that_is_free_is_taken_before_a_key_loses_its_own() -> None:
    book = DiskBook(4, [(ONE, 0), (TWO, 2)])  # place 1 was free in an earlier run
    assert [book.begin(key) for key in (THREE, FOUR)] == [1, 3]
    book.forget(ONE)
    assert book.begin(FIVE) == 0
    assert book.find(TWO) == 2
    book.check()
