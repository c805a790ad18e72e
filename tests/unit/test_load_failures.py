"""What a decode node does with KV that does not come, or is not what it should be."""

import logging

import msgspec
import pytest

from api.generator import FailedEvent, TokenEvent
from engine.request import Request, RequestId, Sampling
from kv_transfer.api import Outcome
from kv_transfer.errors import (
    CorruptKv,
    LayoutMismatch,
    LeaseExpired,
    PeerUnreachable,
    TransferError,
)
from kv_transfer.ticket import KvTicket
from tests.fakes.decoding import Pair, failures, rid, sealed_for
from tests.fakes.model import VOCABULARY, alone

asked = Request(rid, (1, 2), Sampling(3, seed=7, temperature=1.0))
other_prompt = Request(rid, (1, 3))
other_length = Request(rid, (1, 2, 3))  # one block as well


def misfit(pair: Pair, sealed: Request, name: str = "r") -> KvTicket:
    ticket = pair.source.offer(name)
    pair.source.extend(ticket.ticket_id, range(-(-len(sealed.prompt) // 4)))
    pair.source.seal(ticket.ticket_id, sealed_for(sealed))
    return ticket


def tokens(pair: Pair, ticks: int = 12) -> list[int]:
    said = [event for _, event in pair.tick(ticks) if isinstance(event, TokenEvent)]
    return [token for event in said for token in event.tokens]


@pytest.mark.parametrize("sealed", [other_prompt, other_length])
def test_kv_of_another_prompt_is_not_used(sealed: Request) -> None:
    pair = Pair()
    pair.submit(asked, misfit(pair, sealed))
    assert tokens(pair) == alone(asked)
    assert pair.used_blocks == 0
    assert pair.node.load_failures == {"mismatch": 1}


@pytest.mark.parametrize("sealed", [other_prompt, other_length])
def test_kv_of_another_prompt_fails_the_leg_where_it_is_to(sealed: Request) -> None:
    pair = Pair(recompute=False)
    pair.submit(asked, misfit(pair, sealed))
    (event,) = failures(pair.tick(6))
    assert event.retryable
    assert event.by_peer
    assert pair.used_blocks == 0
    assert pair.node.load_failures == {"mismatch": 1}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CorruptKv("x"), "corrupt"),
        (LayoutMismatch("x"), "mismatch"),
        (LeaseExpired("x"), "expired"),
        (PeerUnreachable("x"), "unreachable"),
    ],
)
def test_whatever_goes_wrong_the_prompt_runs_here(error: TransferError, kind: str) -> None:
    pair = Pair()
    pair.submit(asked, pair.source.offer("r"))
    pair.tick()
    pair.sink.book.fail_source(("h", 1), error)
    assert tokens(pair) == alone(asked)
    assert pair.node.load_failures == {kind: 1}
    assert pair.used_blocks == 0


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**40])
def test_a_first_token_that_there_is_not_costs_no_more_than_kv_that_is_wrong(
    token: int,
) -> None:
    """Else one peer's word would end the engine, and all that runs on it."""
    pair = Pair()
    ticket = pair.source.offer("r")
    pair.source.extend(ticket.ticket_id, [0])
    sealed = msgspec.structs.replace(sealed_for(asked), first_token=token)
    pair.source.seal(ticket.ticket_id, sealed)
    pair.submit(asked, ticket)
    assert tokens(pair) == alone(asked)
    assert pair.used_blocks == 0
    assert pair.node.load_failures == {"corrupt": 1}


def test_a_copy_of_a_job_whose_kv_is_being_pulled_runs_here() -> None:
    """A router sends a request twice: each is answered in full, and the KV is taken once."""
    pair = Pair()
    ticket = pair.source.offer("r")
    copy = Request(RequestId("copy"), asked.prompt, asked.sampling)
    pair.submit(asked, ticket)
    pair.submit(copy, ticket)
    said = [(name, e.tokens) for name, e in pair.tick(4) if isinstance(e, TokenEvent)]
    assert [token for name, one in said if name == "copy" for token in one] == alone(asked)
    assert pair.node.load_failures == {"in_use": 1}
    assert pair.outcomes() == []


def test_a_job_that_was_aborted_is_not_computed_anew() -> None:
    pair = Pair()
    pair.submit(asked, pair.source.offer("r"))
    pair.tick()
    pair.node.abort(rid)
    assert pair.tick(4) == []
    assert pair.node.load_failures == {}
    assert pair.outcomes() == [Outcome.WITHDRAWN]
    assert pair.used_blocks == 0


def test_bad_kv_is_never_found_again_in_the_prefix_cache() -> None:
    """The next turn of a chat would go on from it."""
    long = Request(rid, tuple(range(12)), Sampling(4))
    other = Request(rid, tuple(range(1, 13)))
    pair = Pair()
    for name in ("first", "again"):
        pair.submit(long, misfit(pair, other, name))
        assert tokens(pair) == alone(long)


def test_each_failure_is_one_line_for_who_operates(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is computed twice without a word (vllm#27083)."""
    pair = Pair()
    pair.submit(asked, misfit(pair, other_prompt))
    with caplog.at_level(logging.WARNING):
        tokens(pair)
    (line,) = caplog.messages
    assert "r: KV was not loaded, the prompt is computed here" in line


def test_what_was_given_up_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """An answer is over with its first token, and the abort of its decode leg comes later."""
    pair = Pair()
    ticket = pair.source.offer("r")
    pair.submit(asked, ticket)
    pair.tick()
    pair.source.withdraw(ticket.ticket_id)
    with caplog.at_level(logging.INFO, logger="decode_node.worker"):
        pair.tick(4)
    (line,) = caplog.records
    assert (line.levelno, "OfferWithdrawn" in line.message) == (logging.INFO, True)
    assert pair.node.load_failures == {"withdrawn": 1}


def test_a_failed_load_ends_the_leg_before_any_token() -> None:
    """Not with an answer that looks like one (vllm#52276)."""
    pair = Pair(recompute=False)
    pair.submit(asked, pair.source.offer("r"))
    pair.tick()
    pair.sink.book.fail_source(("h", 1), CorruptKv("block 3"))
    news = [event for _, event in pair.tick(4)]
    assert news == [FailedEvent("CorruptKv('block 3')", retryable=True, by_peer=True)]
