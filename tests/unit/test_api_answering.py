"""Token events become text: where it ends and why, and that nothing stays open."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.answering import Answer
from api.choices import TextPiece, join_pieces
from api.generator import Event, Leg, PromptEvent, StreamFailed, TicketEvent, TokenEvent
from api.served import ServedModel, read_leg_params
from api.text.detokenizing import Detokenizer
from api.text.tokenizing import TextCodec
from engine.request import FinishReason, Request
from kv_transfer.ticket import KvTicket
from tests.fakes.asking import Fields, chat, complete
from tests.fakes.text import EOS, FakeDoor, byte_level, metaspace, says, served

CODEC = byte_level()
CAT = CODEC.encode("the cat sat on the mat")
LENGTH, STOP = FinishReason.LENGTH, FinishReason.STOP
HOLD = {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
TICKET = KvTicket("t", "e", "h", 1, "f")


def door(*events: Event | StreamFailed) -> FakeDoor:
    return FakeDoor(lambda request, leg: events)


async def pieces(source: FakeDoor, fields: Fields | None = None) -> list[TextPiece]:
    asked = await complete(fields, legs=read_leg_params)
    said = [piece async for piece in Answer(source, asked).pieces()]
    assert source.opened == source.closed == len(asked.calls)
    return said


async def answer(source: FakeDoor, fields: Fields | None = None) -> TextPiece:
    return join_pieces(await pieces(source, fields))


def ending(
    text: str, tokens: Sequence[int], finish: FinishReason, reason: object = None
) -> TextPiece:
    return TextPiece(0, text, tuple(tokens), len(tokens), finish, reason)  # type: ignore[arg-type]


async def test_the_end_of_sequence_counts_but_is_no_text() -> None:
    said = await answer(door(*says([*CAT, EOS])), {"skip_special_tokens": False})
    assert said == ending("the cat sat on the mat", [*CAT, EOS], STOP)


async def test_an_end_of_sequence_that_ends_nothing_is_text_if_asked_for() -> None:
    events = says([CAT[0], EOS, CAT[0]], LENGTH)
    assert (await answer(door(*events))).text == "thethe"
    assert (await answer(door(*events), {"skip_special_tokens": False})).text == "the</s>the"


async def test_a_stop_token_is_not_said_unless_asked_for() -> None:
    events = says(CAT, stop_reason=CAT[-1])
    assert await answer(door(*events)) == ending("the cat sat on the", CAT, STOP, CAT[-1])
    whole = await answer(door(*events), {"include_stop_str_in_output": True})
    assert whole == ending("the cat sat on the mat", CAT, STOP, CAT[-1])


async def test_the_last_token_of_a_full_answer_is_said() -> None:
    assert await answer(door(*says(CAT, LENGTH))) == ending(
        "the cat sat on the mat", CAT, LENGTH
    )


async def test_several_tokens_in_one_event_read_like_one_by_one() -> None:
    together = door(PromptEvent(0), TokenEvent(CAT[:4]), TokenEvent(CAT[4:], LENGTH))
    assert await answer(together) == await answer(door(*says(CAT, LENGTH)))


async def test_a_stop_string_ends_the_answer_and_aborts_the_rest() -> None:
    source = door(*says([*CAT, *CAT, EOS]))
    said = await pieces(source, {"stop": ["at o", "never"]})
    assert said[-1].finish is STOP
    assert join_pieces(said).text == "the cat s"
    assert join_pieces(said).stop_reason == "at o"
    assert len(join_pieces(said).tokens) == CAT.index(CODEC.encode(" on")[0]) + 1
    assert source.read < len(CAT)


async def test_the_stop_string_is_said_if_asked_for() -> None:
    fields = {"stop": "at o", "include_stop_str_in_output": True}
    assert (await answer(door(*says(CAT)), fields)).text == "the cat sat o"


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=40),
    stop=st.sampled_from(["a", "at", "the ", "e m", "ß", "東京", "🚀"]),
    min_tokens=st.integers(0, 12),
)
async def test_the_answer_does_not_depend_on_how_tokens_come(
    sizes: list[int], stop: str, min_tokens: int
) -> None:
    tokens = CODEC.encode("the cat sat. grüße aus 東京 🚀 the mat")
    events, rest = list[Event](), tokens
    for size in [*sizes, len(tokens)]:
        if rest:
            events.append(TokenEvent(rest[:size], None if rest[size:] else LENGTH))
            rest = rest[size:]
    fields = {"stop": stop, "min_tokens": min_tokens}
    alone = await answer(door(*says(tokens, LENGTH)), fields)
    assert await answer(door(*events), fields) == alone


async def test_a_stop_string_within_min_tokens_is_just_text() -> None:
    for min_tokens, text in ((0, "the c"), (2, "the cat s"), (3, "the cat sat on the m")):
        said = await answer(door(*says(CAT, LENGTH)), {"stop": "at", "min_tokens": min_tokens})
        assert (said.text, said.stop_reason) == (text, "at")


async def test_a_stop_string_that_is_complete_with_the_last_token_is_the_reason() -> None:
    said = await answer(door(*says(CAT, LENGTH)), {"stop": "mat"})
    assert said == ending("the cat sat on the ", CAT, STOP, "mat")


async def test_the_beginning_of_a_stop_string_is_said_at_the_end() -> None:
    assert (await answer(door(*says(CAT, LENGTH)), {"stop": "mats"})).text.endswith("mat")


async def test_no_piece_holds_half_a_character() -> None:
    tokens = CODEC.encode("…ö東")
    said = await pieces(door(*says(tokens, LENGTH)))
    assert len(tokens) > len("…ö東")
    assert {piece.text for piece in said} == {"", *"…ö東"}


async def test_an_answer_that_ends_in_half_a_character_says_so() -> None:
    tokens = CODEC.encode("…")[:1]
    assert (await answer(door(*says(tokens, LENGTH)))).text == "\ufffd"


@pytest.mark.parametrize(("echo", "text"), [(False, " cat"), (True, "the cat")])
async def test_what_goes_on_with_a_text_begins_with_the_blank_between(
    echo: bool, text: str
) -> None:
    """Tokenizers like sentencepiece's leave it out where a text begins."""
    codec = metaspace(byte_fallback=True)
    prompt, tokens = codec.encode("the"), codec.encode("cat")
    assert (codec.decode(tokens), codec.decode(prompt + tokens)) == ("cat", "the cat")
    asked = await complete({"prompt": "the", "echo": echo}, door=served(codec))
    source = FakeDoor(lambda request, leg: says([*tokens, EOS]))
    assert join_pieces([one async for one in Answer(source, asked).pieces()]).text == text


@pytest.mark.parametrize(("goes_on", "text"), [(False, "cat"), (True, " cat")])
async def test_an_answer_of_its_own_begins_without_a_blank(goes_on: bool, text: str) -> None:
    codec = metaspace(byte_fallback=True)
    wrapped: Any = codec.tokenizer
    wrapped.chat_template = "{% for one in messages %}{{ one.content }}{% endfor %}"
    messages = [{"role": "assistant", "content": "the"}]
    ends = {"continue_final_message": goes_on, "add_generation_prompt": not goes_on}
    asked = await chat({"messages": messages, **ends}, door=served(codec))
    source = FakeDoor(lambda request, leg: says([*codec.encode("cat"), EOS]))
    assert join_pieces([one async for one in Answer(source, asked).pieces()]).text == text


async def test_all_choices_run_at_once_and_each_has_its_own_text() -> None:
    def script(request: Request, leg: Leg) -> Sequence[Event]:
        assert leg == Leg()
        return says(CAT[: request.sampling.sample_index + 1], LENGTH)

    said = await pieces(FakeDoor(script), {"n": 3})
    by_index = [join_pieces([p for p in said if p.index == i]).text for i in range(3)]
    assert by_index == ["the", "the cat", "the cat sat"]


async def test_one_failed_choice_ends_all() -> None:
    def script(request: Request, leg: Leg) -> Sequence[Event | StreamFailed]:
        assert not leg.hold
        failed = request.sampling.sample_index == 1
        return [StreamFailed("gone")] if failed else says(CAT * 100, LENGTH)

    source = FakeDoor(script)
    answering = Answer(source, await complete({"n": 3}))
    with pytest.raises(StreamFailed, match="gone"):
        _ = [piece async for piece in answering.pieces()]
    assert source.opened == source.closed


@pytest.mark.parametrize("fields", [{}, {"n": 3}])
async def test_to_leave_is_to_close_every_stream(fields: Fields) -> None:
    source = door(*says(CAT * 100, LENGTH))
    answering = Answer(source, await complete(fields)).pieces()
    await anext(answering)
    await answering.aclose()
    assert source.opened == source.closed > 0


@pytest.mark.parametrize("finish", [FinishReason.ABORT, FinishReason.ERROR])
async def test_an_answer_that_was_cut_is_a_failure(finish: FinishReason) -> None:
    with pytest.raises(StreamFailed, match="cut short"):
        await answer(door(*says(CAT, finish)))


async def test_a_stream_that_ends_without_a_finish_is_a_failure() -> None:
    with pytest.raises(StreamFailed, match="ended before"):
        await answer(door(PromptEvent(0), TokenEvent(CAT)))


@pytest.mark.parametrize("finish", [None, LENGTH])
async def test_a_prefill_leg_ends_with_its_stream(finish: FinishReason | None) -> None:
    source = door(TicketEvent(TICKET), TokenEvent(CAT[:1], finish), TicketEvent(TICKET))
    said = await pieces(source, {**HOLD, "max_tokens": 5})
    assert [piece.finish for piece in said] == [None, LENGTH]
    assert join_pieces(said).text == "the"
    assert source.asked[0][1] == Leg(hold=True)


async def test_an_echo_is_read_once_for_all_choices_of_a_prompt() -> None:
    class Counting(TextCodec):
        made: ClassVar[list[bool]] = []

        def detokenizer(
            self, *, skip_special_tokens: bool = True, shown: tuple[str, ...] = ()
        ) -> Detokenizer:
            self.made.append(skip_special_tokens)
            return super().detokenizer(skip_special_tokens=skip_special_tokens, shown=shown)

    counting = ServedModel(("tiny",), Counting(CODEC.tokenizer, CODEC.fast), lambda: 200)
    fields = {"prompt": ["the", "cat"], "n": 3, "echo": True, "max_tokens": 1}
    asked = await complete(fields, door=counting)
    said = [piece async for piece in Answer(door(*says(CAT[:1], LENGTH)), asked).pieces()]
    assert [one.text for one in sorted(said, key=lambda one: one.index)] == [
        *["thethe"] * 3,
        *["catthe"] * 3,
    ]
    choices, prompts = 6, 2
    assert len(Counting.made) == choices + prompts
