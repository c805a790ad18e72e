"""POST /v1/responses over HTTP, as OpenAI's own types read it: streamed and not."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from api.generator import Event, Leg, PromptEvent, TokenEvent
from api.reasoning.formats import ReasoningParser
from engine.grammars.checking import GrammarChecker
from engine.request import FinishReason, Logprob, Request
from tests.fakes.http import NOW, Client, Json
from tests.fakes.responses import CALL, CLOCK, CODEC, PARIS, TOOLS, ask, heard, summary
from tests.fakes.text import EOS, FakeDoor, says, served

GRAMMARS = GrammarChecker()
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
THOUGHT = "<think>\nHm. It is\n 4.\n</think>\n\nIt is 4."
BOTH = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(autouse=True, scope="module")
def checked() -> Iterator[None]:
    """No process is left that checks grammars."""
    with GRAMMARS:
        yield


def door(
    text: str,
    finish: FinishReason = STOP,
    *,
    burst: bool = False,
    told: bool = False,
    parser: ReasoningParser = "qwen3",
) -> Client:
    """It says this, a token at a time or all at once, and where `told` how likely that was."""
    tokens = [*CODEC.encode(text), *([EOS] if finish is STOP else ())]

    def script(_: Request, __: Leg) -> Sequence[Event]:
        if told:
            return [PromptEvent(0), *_told(tokens, finish)]
        return (
            [PromptEvent(0), TokenEvent(tuple(tokens), finish)]
            if burst
            else says(tokens, finish)
        )

    model = replace(served(CODEC), reasoning_parser=parser, grammars=GRAMMARS)
    return Client(FakeDoor(script), model)


def _told(tokens: Sequence[int], finish: FinishReason) -> Iterator[Event]:
    for number, token in enumerate(tokens, 1):
        last = finish if number == len(tokens) else None
        yield TokenEvent((token,), last, logprobs=((Logprob(token, -1.0, 1),),))


@BOTH
@pytest.mark.parametrize("burst", [False, True])
@pytest.mark.parametrize(
    ("text", "fields", "expected"),
    [
        ("the sea", {}, [("message", "the sea")]),
        ("", {}, [("message", "")]),
        (CALL, {"tools": TOOLS}, [("function_call", "weather", PARIS)]),
        (
            f"Hm.\n{CALL}\n{CLOCK} the sea",
            {"tools": TOOLS},
            [
                ("message", "Hm."),
                ("function_call", "weather", PARIS),
                ("function_call", "clock", "{}"),
                ("message", " the sea"),
            ],
        ),
        (CALL, {"tools": TOOLS, "tool_choice": "none"}, [("message", CALL)]),
        (
            PARIS,
            {"tools": TOOLS, "tool_choice": {"type": "function", "name": "weather"}},
            [("function_call", "weather", PARIS)],
        ),
        (
            f"{CALL}{CLOCK}",
            {"tools": TOOLS, "parallel_tool_calls": False},
            [("function_call", "weather", PARIS)],
        ),
        (THOUGHT, {}, [("reasoning", "Hm. It is\n 4."), ("message", "It is 4.")]),
        (
            f"<think>Hm.</think>{CALL}",
            {"tools": TOOLS},
            [("reasoning", "Hm."), ("function_call", "weather", PARIS)],
        ),
        (THOUGHT, {"include_reasoning": False}, [("message", "It is 4.")]),
        ("<think>Hm.</think>", {}, [("reasoning", "Hm."), ("message", "")]),
    ],
)
async def test_what_is_said_comes_in_items(
    text: str, fields: Json, expected: list[tuple[str, ...]], burst: bool, stream: bool
) -> None:
    fields = {"max_output_tokens": 190, "truncation": "auto", **fields}
    response = await heard(door(text, burst=burst), stream=stream, **fields)
    assert summary(response) == expected
    assert response["status"] == "completed"
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert response["completed_at"] == NOW


@BOTH
@pytest.mark.parametrize(
    ("text", "expected", "status"),
    [
        ("the sea", ("message", "the sea"), "incomplete"),
        ("<think>Hm.", ("reasoning", "Hm."), "incomplete"),
        (CALL[: CALL.index("Par")], ("function_call", "weather", '{"city": "'), "incomplete"),
        (CALL, ("function_call", "weather", PARIS), "completed"),
    ],
)
async def test_an_answer_that_is_cut_is_incomplete(
    text: str, expected: tuple[str, ...], status: str, stream: bool
) -> None:
    said = await heard(door(text, LENGTH), stream=stream, tools=TOOLS, max_output_tokens=100)
    assert summary(said) == [expected]
    assert said["status"] == "incomplete"
    assert said["incomplete_details"] == {"reason": "max_output_tokens"}
    assert said["completed_at"] is None
    assert said["output"][0]["status"] == status


@BOTH
@pytest.mark.parametrize("text", ["grüße aus 東京 🦊 the <tool", THOUGHT, f"Hm. {CALL} the"])
async def test_log_probabilities_are_of_the_tokens_of_the_text(text: str, stream: bool) -> None:
    """Not of reasoning, calls and marks, which are no text."""
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 0, "tools": TOOLS}
    response = await heard(door(text, told=True), stream=stream, **fields)
    messages = [one for one in response["output"] if one["type"] == "message"]
    for part in [part for message in messages for part in message["content"]]:
        spelt = b"".join(bytes(one["bytes"]) for one in part["logprobs"])
        assert spelt.decode().strip() == part["text"].strip()
        assert part["text"]
    silent = await heard(door(text), stream=stream, tools=TOOLS)
    assert summary(silent) == summary(response)
    assert "bytes" not in str(silent)


@BOTH
async def test_usage_is_in_the_words_of_responses(stream: bool) -> None:
    prompt = len(CODEC.encode("<|user|>hi<|assistant|><tool_call>"))
    usage = (await heard(door(THOUGHT), stream=stream))["usage"]
    said = len(CODEC.encode(THOUGHT)) + 1
    thought = usage["output_tokens_details"].pop("reasoning_tokens")
    assert 0 < thought < said
    assert usage == {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": said,
        "output_tokens_details": {},
        "total_tokens": prompt + said,
    }
    cached = Client(FakeDoor(lambda request, leg: says([EOS], cached=3)), served())
    usage = (await heard(cached, stream=stream))["usage"]
    assert usage["input_tokens_details"]["cached_tokens"] == 3


@BOTH
async def test_settings_come_back(stream: bool) -> None:
    given: Json = {
        "instructions": "be short",
        "max_output_tokens": 50,
        "max_tool_calls": 3,
        "metadata": {"team": "sea"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "temperature": 0.5,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": {"type": "function", "name": "weather"},
        "tools": TOOLS,
        "top_logprobs": 2,
        "top_p": 0.25,
        "truncation": "auto",
        "user": "me",
    }
    told = {**given, "reasoning": {"effort": "low", "summary": "auto"}, "store": True}
    told["include"] = ["message.output_text.logprobs"]
    response = await heard(door(PARIS), stream=stream, service_tier="flex", **told)
    assert {name: response[name] for name in given} == given
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert response["store"] is False
    assert response["background"] is False
    assert response["previous_response_id"] is None
    assert response["service_tier"] == "default"
    assert (response["object"], response["model"]) == ("response", "tiny")
    assert response["created_at"] == NOW
    bare = await heard(door("the"), stream=stream)
    assert bare["text"] == {"format": {"type": "text"}}
    assert (bare["tool_choice"], bare["tools"], bare["metadata"]) == ("auto", [], {})
    assert (bare["temperature"], bare["top_p"], bare["truncation"]) == (1.0, 1.0, "disabled")


async def test_a_response_has_the_name_of_its_request() -> None:
    said = await ask(door("the"), request_id="mine")
    assert said.json["id"] == "resp_mine"
    assert said.headers["x-request-id"] == "mine"


async def test_ids_of_items_are_new_even_where_a_request_comes_again() -> None:
    first, second = [
        await heard(door(f"Hm. {CALL}"), tools=TOOLS, request_id="mine") for _ in range(2)
    ]
    ids = [item["id"] for one in (first, second) for item in one["output"]]
    assert len(set(ids)) == 4
    assert [one.rstrip("0123456789abcdef") for one in ids[:2]] == ["msg_", "fc_"]
    assert all(len(one) <= 64 for one in ids)
