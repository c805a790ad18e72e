"""Log-probabilities survive the wire, in our form and in vLLM's."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.generate import decode_call
from api.generated import decode_event, encode_answer, encode_event
from api.generator import Event, PromptEvent, TokenEvent
from api.node_logprobs import MIN_LOGPROB, pack, unpack
from api.wire import WireError
from engine.request import FinishReason, Logprob, Logprobs, Request, RequestId

RID = RequestId("r")
BEST, NEXT, FAR = Logprob(4, -0.25, 1), Logprob(7, -1.5, 2), Logprob(9, -30.0, 12)
PLACES = ((BEST, BEST, NEXT), (FAR, BEST, NEXT))


@st.composite
def places(draw: st.DrawFn) -> Logprobs:
    """A place of a small vocabulary: any of its tokens, and the likeliest."""
    values = sorted(draw(st.lists(st.floats(-50, 0), min_size=3, max_size=6)), reverse=True)
    ranked = [Logprob(10 + n, value, n + 1) for n, value in enumerate(values)]
    count = draw(st.integers(0, len(ranked)))
    return (draw(st.sampled_from(ranked)), *ranked[:count])


@given(st.lists(places(), min_size=1, max_size=4).map(tuple))
def test_our_own_form_loses_nothing(told: tuple[Logprobs, ...]) -> None:
    for event in (
        TokenEvent(tuple(place[0].token for place in told), logprobs=told),
        PromptEvent(3, told),
    ):
        assert decode_event(encode_event(RID, event, compact=True)) == [event]


@given(st.lists(places(), min_size=1, max_size=4).map(tuple))
def test_vllms_form_keeps_tokens_values_and_order(told: tuple[Logprobs, ...]) -> None:
    tokens = tuple(place[0].token for place in told)
    [event] = decode_event(encode_event(RID, TokenEvent(tokens, logprobs=told)))
    assert isinstance(event, TokenEvent)
    assert _values(event.logprobs) == _values(told)
    [prompt] = decode_event(encode_event(RID, PromptEvent(3, told)))
    assert isinstance(prompt, PromptEvent)
    assert prompt.cached_tokens == 3
    assert [set(place) for place in prompt.logprobs] == [set(place) for place in told]
    assert [place[0] for place in prompt.logprobs] == [place[0] for place in told]


def test_a_ranks_token_may_come_twice_in_our_form_and_once_in_a_prompts() -> None:
    frame = encode_event(RID, PromptEvent(0, PLACES)).removeprefix(b"data: ")
    assert msgspec.json.decode(frame)["prompt_logprobs"] == [
        None,
        {
            "4": {"logprob": -0.25, "rank": 1, "decoded_token": None},
            "7": {"logprob": -1.5, "rank": 2, "decoded_token": None},
        },
        {
            "9": {"logprob": -30.0, "rank": 12, "decoded_token": None},
            "4": {"logprob": -0.25, "rank": 1, "decoded_token": None},
            "7": {"logprob": -1.5, "rank": 2, "decoded_token": None},
        },
    ]


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("value", [-math.inf, math.nan, -1e30])
def test_json_has_no_infinity(value: float, *, compact: bool) -> None:
    place = (Logprob(4, value, 5),)
    events: list[Event] = [TokenEvent((4,), logprobs=(place,)), PromptEvent(0, (place,))]
    for event in events:
        [said] = decode_event(encode_event(RID, event, compact=compact))
        assert isinstance(said, TokenEvent | PromptEvent)
        assert said.logprobs[0][0].logprob == MIN_LOGPROB


def test_vllms_form_names_tokens_in_both_ways() -> None:
    event = TokenEvent((9,), logprobs=PLACES[1:])
    [choice] = msgspec.json.decode(encode_event(RID, event).removeprefix(b"data: "))["choices"]
    [entry] = choice["logprobs"]["content"]
    for told, one in zip([entry, *entry["top_logprobs"]], PLACES[1], strict=True):
        name, score = f"token_id:{one.token}", (one.token, one.logprob, one.rank)
        assert told["token"] == name
        assert (told["token_id"], told["logprob"], told["rank"]) == score


def test_newer_nodes_name_ids_and_ranks() -> None:
    frame = b"""data: {"choices": [{"token_ids": [9], "logprobs": {"content": [
        {"token_id": 9, "logprob": -30.0, "rank": 12, "top_logprobs": [
        {"token_id": 9, "logprob": -30.0, "rank": 12},
        {"token_id": 4, "logprob": -0.25}]}]}}]}"""
    [event] = decode_event(frame)
    assert isinstance(event, TokenEvent)
    assert event.logprobs == ((FAR, BEST, Logprob(9, -30.0, 2)),)
    assert decode_event(frame, likeliest=-1) == [event]


def test_a_sampled_token_is_not_among_the_likeliest_if_it_is_none_of_them() -> None:
    tops = [{"token_id": token, "logprob": value} for token, value in ((9, -30.0), (4, -0.25))]
    entry = {"token_id": 9, "logprob": -30.0, "rank": 12, "top_logprobs": tops}
    choice = {"token_ids": [9], "logprobs": {"content": [entry]}}
    frame = b"data: " + msgspec.json.encode({"choices": [choice]})
    for likeliest, told in ((1, (FAR, BEST)), (0, (FAR,))):
        assert decode_event(frame, likeliest) == [TokenEvent((9,), logprobs=(told,))]


@pytest.mark.parametrize("token", ["cat", "token_id:", "token_id:x", ""])
def test_a_token_without_an_id_is_a_typed_error(token: str) -> None:
    entry = {"token": token, "logprob": -1.0}
    choice = {"token_ids": [9], "logprobs": {"content": [entry]}}
    with pytest.raises(WireError):
        decode_event(b"data: " + msgspec.json.encode({"choices": [choice]}))


def test_fewer_entries_than_tokens_are_a_typed_error() -> None:
    event = TokenEvent((4, 9), logprobs=PLACES[:1])
    for compact in (True, False):
        with pytest.raises(WireError, match="1 log-probabilities for 2 tokens"):
            decode_event(encode_event(RID, event, compact=compact))


def test_the_whole_answer_has_both() -> None:
    events: list[Event] = [
        PromptEvent(2),
        PromptEvent(2, PLACES[:1]),
        TokenEvent((4,), logprobs=PLACES[:1]),
        TokenEvent((9,), FinishReason.LENGTH, logprobs=PLACES[1:]),
    ]
    said = msgspec.json.decode(encode_answer(Request(RID, (1, 4)), events, "tiny", 7))
    [choice] = said["choices"]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["token_id:4", "token_id:9"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2]
    assert said["prompt_logprobs"][0] is None
    assert list(said["prompt_logprobs"][1]) == ["4", "7"]
    assert said["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


@pytest.mark.parametrize(
    ("given_", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"bad_words": ["text"]}, "bad_words[0]"),
        ({"bad_words": [[]]}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"seed": "x"}, "seed"),
    ],
)
def test_a_wrong_parameter_is_named(given_: dict[str, object], param: str) -> None:
    body = msgspec.json.encode({"token_ids": [1], "sampling_params": given_})
    with pytest.raises(WireError) as refused:
        decode_call(body, request_id=RID)
    assert refused.value.param == param


def _values(told: tuple[Logprobs, ...]) -> list[list[tuple[int, float]]]:
    """Equal values may change places."""
    return [
        [(place[0].token, place[0].logprob), *sorted((o.token, o.logprob) for o in place[1:])]
        for place in told
    ]


FIRST, OTHER = Logprob(33, -1.0, 2), Logprob(4, -math.inf, 1)


def test_a_first_tokens_place_comes_out_as_it_was() -> None:
    assert unpack(pack(((FIRST, OTHER),)), 33, 1) == ((FIRST, OTHER),)
    assert unpack(pack(((FIRST, OTHER),)), 34, 1) == ()
    assert unpack(pack(((FIRST, OTHER),)), 33, 2) == ()


@pytest.mark.parametrize(
    "odd",
    [
        *(Logprob(33, value, 1) for value in (math.nan, math.inf, 2.0)),
        *(Logprob(33, -1.0, rank) for rank in (0, -1, 2**40)),
        *(Logprob(token, -1.0, 1) for token in (-5, 2**62)),
    ],
)
def test_a_place_that_cannot_be_is_none(odd: Logprob) -> None:
    """It comes from another node."""
    assert unpack(pack(((FIRST, odd),)), 33, 1) == ()
    assert unpack(pack(((odd, OTHER),)), odd.token, 1) == ()
