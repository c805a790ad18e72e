"""Log-probabilities over HTTP: OpenAI's own types read them, and nothing is lost on the way."""

import math
import threading

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from api.generator import Event, Leg, PromptEvent, TokenEvent
from api.node_logprobs import MIN_LOGPROB
from api.text.tokenizing import TextCodec
from engine.request import FinishReason, Logprob, Logprobs, Request
from engine.token_bytes import TokenBytes
from tests.fakes.http import Client, Json
from tests.fakes.text import EOS, FakeDoor, byte_level, metaspace, served

CODEC = byte_level()
TEXT = "the cat sat 🚀 on"
TOKENS = CODEC.encode(TEXT)
PROMPT = CODEC.encode("the cat")


def place(token: int, count: int) -> Logprobs:
    """The token is third, and two others are likelier."""
    tops = [Logprob(token + 1, -0.25, 1), Logprob(token + 2, -0.5, 2), Logprob(token, -1.0, 3)]
    return (tops[2], *tops[:count])


def teller(request: Request, leg: Leg) -> list[Event]:
    """TEXT in pieces of three tokens, with whatever the request asks to be told."""
    del leg
    asked, prompt = request.sampling.logprobs, request.sampling.prompt_logprobs
    events: list[Event] = [PromptEvent(0)]
    if prompt is not None:
        told = tuple(place(token, prompt) for token in request.prompt[1:])
        events.append(PromptEvent(0, told))
    if request.sampling.max_tokens == 1:
        return [*events, TokenEvent((9,), FinishReason.LENGTH)]
    for start in range(0, len(TOKENS), 3):
        part = TOKENS[start : start + 3]
        told = () if asked is None else tuple(place(token, asked) for token in part)
        events.append(TokenEvent(part, logprobs=told))
    told = () if asked is None else (place(EOS, asked),)
    return [*events, TokenEvent((EOS,), FinishReason.STOP, logprobs=told)]


def client() -> Client:
    return Client(FakeDoor(teller))


def entries(chunks: list[Json]) -> list[Json]:
    """Of a streamed chat."""
    told = [chunk["choices"][0].get("logprobs") for chunk in chunks]
    return [entry for one in told if one for entry in one["content"]]


async def test_a_chats_tokens_have_bytes_and_the_likeliest() -> None:
    said = await client().chat(logprobs=True, top_logprobs=2)
    choice = ChatCompletion.model_validate(said.json).choices[0]
    assert choice.logprobs
    assert choice.logprobs.content
    content = choice.logprobs.content
    assert len(content) == len(TOKENS) + 1
    spelt = b"".join(bytes(entry.bytes or []) for entry in content[:-1])
    assert spelt == TEXT.encode()
    assert content[-1].token == "</s>"
    assert [[top.logprob for top in entry.top_logprobs] for entry in content] == [
        [-0.25, -0.5]
    ] * len(content)
    assert [entry.logprob for entry in content] == [-1.0] * len(content)
    assert any("\ufffd" in entry.token for entry in content)


@pytest.mark.parametrize("fields", [{}, {"logprobs": False}, {"logprobs": None}])
async def test_nobody_who_does_not_ask_is_told(fields: dict[str, Json]) -> None:
    assert (await client().chat(**fields)).json["choices"][0]["logprobs"] is None
    chunks = (await client().chat(stream=True, **fields)).events
    assert entries(chunks) == []


async def test_a_switch_without_a_number_tells_of_the_token_alone() -> None:
    content = (await client().chat(logprobs=True)).json["choices"][0]["logprobs"]["content"]
    assert [entry["top_logprobs"] for entry in content] == [[]] * (len(TOKENS) + 1)


async def test_a_streamed_chat_tells_the_same() -> None:
    asked: Json = {"logprobs": True, "top_logprobs": 2}
    whole = (await client().chat(**asked)).json["choices"][0]["logprobs"]["content"]
    said = await client().chat(**asked, stream=True)
    for event in said.events:
        ChatCompletionChunk.model_validate(event)
    assert entries(said.events) == whole
    assert said.text == TEXT


async def test_what_is_held_back_is_told_of_at_once() -> None:
    """The text waits for what may be a stop string; its tokens do not."""
    said = await client().chat(logprobs=True, stream=True, stop=TEXT + "!")
    first, *_ = (event["choices"][0] for event in said.events[1:])
    assert first["delta"] == {}
    assert len(first["logprobs"]["content"]) == 3
    assert said.text == TEXT


async def test_a_stop_strings_tokens_are_told_of_and_no_more() -> None:
    stop = CODEC.decode(TOKENS[1:2]).strip()
    content = (await client().chat(logprobs=True, stop=stop)).json["choices"][0]["logprobs"]
    assert len(content["content"]) == 2


async def test_tokens_of_equal_text_stay_apart() -> None:
    def twins(request: Request, leg: Leg) -> list[Event]:
        del request, leg
        half, other = (Logprob(CODEC.encode("🚀")[0], -0.5, 1), Logprob(EOS, -0.75, 2))
        told = ((half, half, Logprob(half.token, -2.0, 3), other),)
        return [TokenEvent((half.token,), FinishReason.LENGTH, logprobs=told)]

    ask = Client(FakeDoor(twins))
    chat = await ask.chat(logprobs=True, top_logprobs=3)
    [entry] = chat.json["choices"][0]["logprobs"]["content"]
    assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.5, -2.0, -0.75]
    told = (await ask.complete(logprobs=3)).json["choices"][0]["logprobs"]
    assert told["top_logprobs"] == [{"\ufffd": -0.5, "</s>": -0.75}]


async def test_a_completion_has_four_lists() -> None:
    said = await client().complete(logprobs=2)
    logprobs = Completion.model_validate(said.json).choices[0].logprobs
    assert logprobs
    assert logprobs.tokens
    assert logprobs.text_offset
    assert logprobs.top_logprobs
    assert logprobs.token_logprobs == [-1.0] * (len(TOKENS) + 1)
    assert [len(one) for one in logprobs.top_logprobs if one] == [3] * (len(TOKENS) + 1)
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        if "\ufffd" not in token and token != "</s>":
            assert TEXT[offset:].startswith(token)
    assert logprobs.text_offset[-1] == len(TEXT)


async def test_names_by_id_are_all_different() -> None:
    asked: Json = {"logprobs": 2, "return_tokens_as_token_ids": True}
    told = (await client().complete(**asked)).json["choices"][0]["logprobs"]
    assert told["tokens"] == [f"token_id:{token}" for token in (*TOKENS, EOS)]
    assert {len(one) for one in told["top_logprobs"]} == {3}


@pytest.mark.parametrize("stream", [True, False])
async def test_an_echo_begins_with_the_prompt_and_what_was_foretold(stream: bool) -> None:
    said = await client().complete(
        prompt=[*PROMPT], logprobs=1, echo=True, stream=stream, max_tokens=30
    )
    events = said.events if stream else [said.json]
    choices = [event["choices"][0] for event in events]
    assert "".join(choice["text"] for choice in choices) == "the cat" + TEXT
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    values = [value for one in told for value in one["token_logprobs"]]
    assert values[0] is None
    assert values[1:] == [-1.0] * (len(PROMPT) - 1 + len(TOKENS) + 1)
    assert told[0]["top_logprobs"][0] is None
    offsets = [offset for one in told for offset in one["text_offset"]]
    assert offsets == sorted(offsets)
    assert offsets[len(PROMPT)] == len("the cat")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_echo_alone_says_nothing_new(stream: bool) -> None:
    said = await client().complete(
        prompt=[*PROMPT], logprobs=0, echo=True, max_tokens=0, stream=stream
    )
    [event] = said.events if stream else [said.json]
    [choice] = event["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("the cat", "length")
    assert len(choice["logprobs"]["tokens"]) == len(PROMPT)
    if not stream:
        assert event["usage"]["completion_tokens"] == 0


async def test_an_echo_need_not_tell() -> None:
    said = await client().complete(prompt=["the", "cat"], echo=True, n=2)
    texts = [choice["text"] for choice in said.json["choices"]]
    assert texts == ["the" + TEXT] * 2 + ["cat" + TEXT] * 2
    assert said.json["choices"][0]["logprobs"] is None


async def test_a_prompts_log_probabilities_are_vllms() -> None:
    expected = [
        None,
        *(
            {
                str(one.token): {
                    "logprob": one.logprob,
                    "rank": one.rank,
                    "decoded_token": CODEC.vocabulary.text_of(one.token),
                }
                for one in place(token, 1)
            }
            for token in PROMPT[1:]
        ),
    ]
    answer = (await client().complete(prompt=[*PROMPT], prompt_logprobs=1, n=2)).json
    assert [choice["prompt_logprobs"] for choice in answer["choices"]] == [expected] * 2
    assert "prompt_logprobs" not in answer
    chat = (await client().chat(prompt_logprobs=1)).json
    assert chat["prompt_logprobs"][0] is None
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


async def test_what_cannot_be_is_as_unlikely_as_json_has_it() -> None:
    def never(request: Request, leg: Leg) -> list[Event]:
        del request, leg
        told = ((Logprob(5, -math.inf, 9),),)
        return [TokenEvent((5,), FinishReason.LENGTH, logprobs=told)]

    said = await Client(FakeDoor(never)).complete(logprobs=0)
    assert said.json["choices"][0]["logprobs"]["token_logprobs"] == [MIN_LOGPROB]


@pytest.mark.parametrize("codec", [byte_level(), metaspace(), metaspace(byte_fallback=True)])
@pytest.mark.parametrize("text", ["the cat", "grüße aus 東京 🚀"])
def test_bytes_of_tokens_are_those_of_the_text(codec: TextCodec, text: str) -> None:
    """Tokenizers with marks for spaces do not say the first."""
    tokens = codec.encode(text, special_tokens=False)
    spelt = b"".join(codec.vocabulary.bytes_of(token) for token in tokens)
    assert spelt.decode().lstrip() == codec.decode(tokens, skip_special_tokens=False).lstrip()
    assert any(codec.vocabulary.text_of(token).startswith(" ") for token in tokens)


@pytest.mark.parametrize("stream", [False, True])
async def test_much_to_tell_is_told_where_it_holds_up_nobody(*, stream: bool) -> None:
    threads = set[str]()

    def spell(token: int) -> bytes:
        threads.add(threading.current_thread().name)
        return bytes([token % 256])

    class Noting(TextCodec):
        @property
        def vocabulary(self) -> TokenBytes:
            return TokenBytes(spell)

    def much(request: Request, leg: Leg) -> list[Event]:
        del request, leg
        told = tuple(place(token, 2) for token in TOKENS * 100)
        return [TokenEvent(TOKENS * 100, FinishReason.LENGTH, logprobs=told)]

    codec = Noting(CODEC.tokenizer, CODEC.fast)
    said = await Client(FakeDoor(much), served(codec, context=None)).complete(
        logprobs=2, stream=stream, max_tokens=5_000
    )
    assert said.status == 200
    assert threads
    assert threading.main_thread().name not in threads
