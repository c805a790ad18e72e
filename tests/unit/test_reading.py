"""Tokens that came together leave together, in order; none is lost before a failure."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.generated import DONE, encode_event
from api.generator import (
    EndEvent,
    Event,
    FailedEvent,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from api.wire import WireError
from engine.request import LARGEST_TOKEN, FinishReason, Logprob, RequestId
from kv_transfer.ticket import KvTicket
from proxy.nodes.reading import LegReader

LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP


def frames(*events: Event) -> list[bytes]:
    whole = b"".join(encode_event(RequestId("r"), event, compact=True) for event in events)
    return whole.strip().split(b"\n\n")


def read(*events: Event, hold: bool = False) -> list[Event]:
    return list(LegReader(hold, ours=True, wanted=9).read(frames(*events)))


def ranked(token: int) -> tuple[Logprob, ...]:
    return (Logprob(token, -0.5, 1),)


def test_frames_of_one_burst_are_one_event() -> None:
    burst = [TokenEvent((token,), logprobs=(ranked(token),)) for token in (5, 6)]
    last = TokenEvent((7, 8), STOP, 8, (ranked(7), ranked(8)))
    everything = tuple(ranked(token) for token in (5, 6, 7, 8))
    assert read(*burst, last) == [TokenEvent((5, 6, 7, 8), STOP, 8, everything)]


def test_a_stage_does_not_part_them() -> None:
    stage = StageEvent("decode", 1.0)
    together = TokenEvent((5, 6), LENGTH)
    assert read(TokenEvent((5,)), stage, TokenEvent((6,), LENGTH)) == [stage, together]


def test_an_end_without_a_token_stays_alone() -> None:
    """A stop token is not said: joined, the token before it would be taken for one."""
    events = TokenEvent((5,)), TokenEvent((), STOP)
    assert read(*events) == list(events)


def test_a_failure_comes_behind_what_was_said() -> None:
    failed = FailedEvent("out of order", retryable=True)
    assert read(TokenEvent((5,)), TokenEvent((6,)), failed) == [TokenEvent((5, 6)), failed]


def test_what_was_said_before_a_bad_frame_counts() -> None:
    reader = LegReader(hold=False, ours=True, wanted=9)
    heard = reader.read([*frames(TokenEvent((5,)), TokenEvent((6,))), b"data: {"])
    assert next(heard) == TokenEvent((5, 6))
    with pytest.raises(WireError):
        next(heard)


def test_a_leg_that_holds_says_its_token_before_its_end() -> None:
    assert read(TokenEvent((5,)), hold=True) == [TokenEvent((5,))]
    ticket = {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "e"}}
    ticket["kv_transfer_params"] |= {"remote_request_id": "t", "remote_host": "h"}
    ticket["kv_transfer_params"] |= {"remote_port": 1}
    frame = b"data: " + msgspec.json.encode(ticket)
    reader = LegReader(hold=True, ours=True, wanted=9)
    heard = list(reader.read([frame, *frames(TokenEvent((5,))), DONE.strip()]))
    assert heard[1:] == [TokenEvent((5,)), EndEvent()]


TOKEN = st.integers(0, LARGEST_TOKEN)


@given(name=st.text(), tokens=st.lists(TOKEN, min_size=2, max_size=4))
def test_frames_that_differ_in_their_token_only_are_read_as_if_they_were_parsed(
    name: str, tokens: list[int]
) -> None:
    said = [encode_event(RequestId(name), TokenEvent((one,))).strip() for one in tokens]
    reader = LegReader(hold=False, ours=True, wanted=9)
    assert reader.read_plain_tokens(said) is None
    assert list(reader.read(said[:1])) == [TokenEvent((tokens[0],))]
    assert reader.read_plain_tokens(said[1:]) in (None, TokenEvent(tuple(tokens[1:])))


def test_they_are_not_parsed() -> None:
    one, two, three = frames(*(TokenEvent((token,)) for token in (5, 16, 7)))
    reader = LegReader(hold=False, ours=True, wanted=9)
    assert list(reader.read([one])) == [TokenEvent((5,))]
    assert reader.read_plain_tokens([two, three]) == TokenEvent((16, 7))


@pytest.mark.parametrize(
    "other",
    [
        TokenEvent((6,), LENGTH),
        TokenEvent((6, 7)),
        TokenEvent((6,), STOP, 6),
        TokenEvent((6,), logprobs=(ranked(6),)),
        TokenEvent((-6,)),
        TokenEvent((10**12,)),
        FailedEvent("6", retryable=True),
    ],
)
def test_what_differs_in_more_is_parsed(other: TokenEvent | FailedEvent) -> None:
    one, two, last = frames(TokenEvent((5,)), TokenEvent((6,)), other)
    reader = LegReader(hold=False, ours=True, wanted=9)
    assert list(reader.read([one])) == [TokenEvent((5,))]
    assert reader.read_plain_tokens([last]) is None
    assert reader.read_plain_tokens([two, last]) is None


def test_a_foreign_node_s_frames_are_parsed() -> None:
    one, two = frames(TokenEvent((5,)), TokenEvent((6,)))
    reader = LegReader(hold=False, ours=False, wanted=9)
    assert list(reader.read([one])) == [TokenEvent((5,))]
    assert reader.read_plain_tokens([two]) is None


@pytest.mark.parametrize(
    "other",
    ['{"x":"r","choices":[{"token_ids":[6]}]}', '{"r":"x","choices":[{"token_ids":[6]},1'],
)
def test_what_is_as_long_and_says_something_else_is_parsed(other: str) -> None:
    """Only digits stand where a token stood, and bytes around them differ."""
    first = b'data: {"r":"x","choices":[{"token_ids":[5]}]}'
    assert len(other) == len(first) - len("data: ")
    reader = LegReader(hold=False, ours=True, wanted=9)
    assert list(reader.read([first])) == [TokenEvent((5,))]
    assert reader.read_plain_tokens([b"data: " + other.encode()]) is None


def test_tokens_that_are_alike_keep_their_log_probabilities() -> None:
    said = TokenEvent((5,), logprobs=(ranked(5),))
    one, two = frames(said, said)
    reader = LegReader(hold=False, ours=True, wanted=9)
    assert list(reader.read([one])) == [said]
    assert reader.read_plain_tokens([two]) is None


def test_a_number_that_is_no_token_is_no_token_on_the_fast_path() -> None:
    one, two = frames(TokenEvent((5,)), TokenEvent((LARGEST_TOKEN + 1,)))
    reader = LegReader(hold=False, ours=True, wanted=9)
    assert list(reader.read([one])) == [TokenEvent((5,))]
    assert reader.read_plain_tokens([two]) is None
    with pytest.raises(WireError):
        list(reader.read([two]))


def test_a_leg_that_holds_may_not_end_without_a_token() -> None:
    reader = LegReader(hold=True, ours=True, wanted=9)
    ticket = TicketEvent(KvTicket("t", "e", "h", 1, None))
    assert [type(event) for event in reader.read(frames(ticket))] == [TicketEvent]
    with pytest.raises(WireError, match="early"):
        list(reader.read([DONE.strip()]))


def test_a_foreign_prefill_leg_that_streams_says_nothing_that_decode_says_again() -> None:
    reader = LegReader(hold=True, ours=False, wanted=9)
    assert list(reader.read(frames(TokenEvent((5,)), TokenEvent((), LENGTH)))) == []
    assert list(reader.read([DONE.strip()])) == [EndEvent()]


def test_a_leg_that_holds_ends_with_its_kv_and_not_with_a_last_token() -> None:
    reader = LegReader(hold=True, ours=True, wanted=1)
    said = frames(TicketEvent(KvTicket("t", "e", "h", 1, None)), TokenEvent((5,), LENGTH))
    assert [type(event) for event in reader.read(said)] == [TicketEvent, TokenEvent]
    assert not reader.over
    assert list(reader.read([DONE.strip()])) == [EndEvent()]
    assert reader.over


@pytest.mark.parametrize("ours", [True, False])
def test_a_foreign_node_that_never_ends_says_no_more_than_was_asked_for(ours: bool) -> None:
    """Ours count for themselves, and the fast path does not."""
    reader = LegReader(hold=False, ours=ours, wanted=2)
    assert list(reader.read(frames(TokenEvent((5,)), TokenEvent((6,))))) == [TokenEvent((5, 6))]
    beyond = frames(TokenEvent((7,)))
    if ours:
        assert list(reader.read(beyond)) == [TokenEvent((7,))]
    else:
        with pytest.raises(WireError, match="more than the 2 tokens"):
            list(reader.read(beyond))
