"""What is to be done for many offers: a turn asks only for those that want something."""

import pytest

from kv_transfer.api import Sealed
from kv_transfer.blocks.checksum_mapping import WHOLE_SEQUENCE
from kv_transfer.checking import CheckLevel
from kv_transfer.ledger.offer import KvOffer
from kv_transfer.ledger.open_offers import OpenOffers


def offer(offers: OpenOffers, name: str, outer: str | None = None) -> KvOffer:
    one = KvOffer(name, outer, level=CheckLevel.FULL)
    offers.add(one)
    return one


def test_checksums_are_wanted_until_there_is_one_for_each_block() -> None:
    offers = OpenOffers()
    one = offer(offers, "t")
    one.extend([7, 8])
    offers.note_change(one)
    (order,) = offers.missing_checksums(1)
    assert (order.ticket_id, order.start, order.blocks) == ("t", 0, [7])
    one.add_checksums((order.level, order.seen), 0, [1])
    offers.note_change(one)
    (order,) = offers.missing_checksums(10)
    assert (order.start, order.blocks) == (1, [8])
    one.add_checksums((order.level, order.seen), 1, [2])
    offers.note_change(one)
    assert not offers.want_checksums
    assert offers.missing_checksums(10) == []


def test_checksums_are_wanted_again_if_others_are_required() -> None:
    offers = OpenOffers()
    one = KvOffer("t", None, level=CheckLevel.OFF)
    offers.add(one)
    one.extend([7])
    offers.note_change(one)
    assert not offers.want_checksums
    one.require_checksums(CheckLevel.FULL, WHOLE_SEQUENCE)
    offers.note_change(one)
    assert offers.want_checksums


def test_news_are_told_once_and_only_if_there_is_a_sink() -> None:
    offers = OpenOffers()
    told, alone = offer(offers, "told"), offer(offers, "alone")
    told.sink = b"sink"
    for one in (told, alone):
        one.seal(Sealed(1, 2))
        offers.note_change(one)
    assert offers.take_news() == [told]
    assert offers.take_news() == []


def test_an_offer_that_is_gone_wants_nothing() -> None:
    offers = OpenOffers()
    one = offer(offers, "t")
    one.sink = b"sink"
    one.extend([7])
    offers.note_change(one)
    assert offers.remove("t") is one
    assert (offers.want_checksums, offers.take_news(), len(offers)) == (False, [], 0)
    with pytest.raises(KeyError):
        offers.remove("t")


def test_a_name_stands_for_its_latest_offer() -> None:
    offers = OpenOffers()
    older = offer(offers, "1", "name")
    newer = KvOffer("2", "name")
    assert offers.add(newer) is older
    assert offers.ticket_of("name") == "2"
    offers.remove("1")
    assert offers.ticket_of("name") == "2"
    offers.remove("2")
    assert offers.ticket_of("name") == "name"


def test_a_turn_looks_at_no_offer_that_wants_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    offers = OpenOffers()
    for number in range(100):
        one = offer(offers, str(number))
        one.sink = b"sink"
        one.seal(Sealed(0, 0))
        offers.note_change(one)
    assert len(offers.take_news()) == 100

    def num_ready(_: KvOffer) -> int:
        raise AssertionError("a turn looked at an offer that wants nothing")

    monkeypatch.setattr(KvOffer, "num_ready", property(num_ready))
    assert (offers.missing_checksums(8), offers.take_news()) == ([], [])
