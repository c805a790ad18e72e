"""Whatever goes wrong, a client reads it where and how it reads OpenAI's errors."""

from collections.abc import AsyncGenerator, Sequence

import pytest

from api.errors import LONGEST_MESSAGE, LONGEST_PARAM
from api.generator import WHOLE, Event, Leg, StreamFailed, Tap, TokenEvent
from api.served import ServedModel
from api.wire import LEFT_OUT, shortened
from engine.errors import GrammarCheckBusy
from engine.grammars.checking import GrammarChecker
from engine.request import Grammar, Request
from proxy.errors import NodeFailed, NoNodeAvailable
from tests.fakes.http import Client, Headers, Json
from tests.fakes.text import FakeDoor, byte_level, saying, says

CODEC = byte_level()
CAT = CODEC.encode("the cat")
JSON = {"Content-Type": "application/json"}
PATH = "/v1/completions"
SECRET = "what only we know"
GONE = NodeFailed("n1", "connection lost", retryable=True)


class Mistaken:
    """A Generator with a fault in it."""

    def __init__(self, *events: Event) -> None:
        self.events = events

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        for event in self.events:
            yield event
        raise ZeroDivisionError(SECRET, request, leg)


def client(*events: Event | StreamFailed) -> Client:
    return Client(FakeDoor(lambda request, leg: events))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("surface", ["complete", "chat"])
@pytest.mark.parametrize(
    ("failure", "status", "kind", "retry"),
    [
        (NoNodeAvailable("no decode node is available"), 503, "server_error", "2"),
        (GONE, 502, "server_error", None),
        (NodeFailed("n1", "too long", retryable=False), 400, "invalid_request_error", None),
    ],
)
async def test_until_the_first_byte_a_failure_has_a_status(
    failure: StreamFailed,
    status: int,
    kind: str,
    retry: str | None,
    surface: str,
    stream: bool,
) -> None:
    said = await getattr(client(failure), surface)(stream=stream)
    assert said.status == status
    assert said.headers.get("retry-after") == retry
    error = {"message": str(failure), "type": kind, "param": None, "code": None}
    assert said.json == {"error": error}


@pytest.mark.parametrize("surface", ["complete", "chat"])
async def test_after_it_a_failure_is_the_last_event(surface: str) -> None:
    said = await getattr(client(TokenEvent(CAT[:1]), GONE), surface)(stream=True)
    assert said.status == 200
    *parts, last = said.events
    assert parts
    assert last == {
        "error": {"message": str(GONE), "type": "server_error", "param": None, "code": None}
    }


async def test_an_unstreamed_answer_that_breaks_off_is_none() -> None:
    said = await client(TokenEvent(CAT[:1]), GONE).complete()
    assert (said.status, said.json["error"]["type"]) == (502, "server_error")


@pytest.mark.parametrize("events", [[TokenEvent(CAT)], [*says(CAT)[:-1]]])
async def test_an_answer_without_an_end_is_no_answer(events: Sequence[Event]) -> None:
    assert (await client(*events).complete()).status == 502
    assert "error" in (await client(*events).complete(stream=True)).events[-1]


async def test_a_fault_of_ours_in_a_stream_is_told_and_not_how() -> None:
    said = await Client(Mistaken(TokenEvent(CAT[:1]))).complete(stream=True)
    assert said.events[-1]["error"]["type"] == "server_error"
    assert SECRET not in said.body


@pytest.mark.parametrize("stream", [True, False])
async def test_a_fault_of_ours_before_it_has_a_status(stream: bool) -> None:
    said = await Client(Mistaken()).complete(stream=stream)
    assert (said.status, said.json["error"]["type"]) == (500, "server_error")
    assert SECRET not in said.body


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"n": "x"}, 400, None, "n"),
        ({"prompt": ""}, 400, None, "prompt"),
        ({"max_tokens": 10_000}, 400, "context_length_exceeded", "max_tokens"),
        ({"model": "gpt-9"}, 404, "model_not_found", "model"),
        ({"echo": False, "suffix": "x"}, 400, None, "suffix"),
        ({"structured_outputs": {"regex": "("}}, 400, None, "structured_outputs"),
        ({"guided_grammar": "root ::= x"}, 400, None, "guided_grammar"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"$ref": "#"}},
                }
            },
            400,
            None,
            "response_format",
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_request_at_fault_is_told_what_is_wrong(
    fields: dict[str, Json], status: int, code: str | None, param: str, stream: bool
) -> None:
    said = await Client(saying("the")).complete(stream=stream, **fields)
    assert said.status == status
    assert said.headers["content-type"] == "application/json"
    error = said.json["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]


async def test_a_door_without_a_tokenizer_says_where_to_go() -> None:
    door = Client(saying("the"), ServedModel(("tiny",), None, lambda: 10))
    said = await door.complete()
    assert said.status == 501
    assert "/inference/v1/generate" in said.json["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", PATH, 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/engines", 404),
        ("POST", "/", 404),
        ("GET", "/v1/models/gpt-9", 404),
    ],
)
async def test_a_wrong_path_or_method_is_told_in_openais_form(
    method: str, path: str, status: int
) -> None:
    said = await Client(saying("the")).ask(method, path)
    assert said.status == status
    assert said.json["error"]["type"] == "invalid_request_error"
    assert ("allow" in said.headers) == (status == 405)
    assert (" takes " in said.json["error"]["message"]) == (status == 405)
    named = "gpt-9" if "gpt-9" in path else f"{method} {path}"
    assert named in said.json["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        (JSON, b"", 400),
        (JSON, b"{", 400),
        (JSON, b"[" * 100_000, 400),
        (JSON, b'{"prompt": "' + b"a" * 17_000_000 + b'"}', 413),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b'{"prompt": "the"}', 415),
        ({"Content-Type": "text/plain"}, b'{"prompt": "the"}', 415),
        ({}, b'{"prompt": "the"}', 200),
        ({"Content-Type": "application/json; charset=utf-8"}, b'{"prompt": "the"}', 200),
    ],
)
async def test_bodies_of_all_kinds(headers: Headers, body: bytes, status: int) -> None:
    said = await Client(saying("the")).ask("POST", PATH, body, headers)
    assert said.status == status
    assert (said.json.get("error") is None) == (status == 200)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("___prefill_addr_10.0.0.1:21001___decode_addr_[::1]:22001_0af/,", True),
        ("a" * 256, True),
        ("a" * 257, False),
        ("", False),
        ("a b", False),
        ('a"b', False),
        ("a<b", False),
        ("ä", False),
    ],
)
async def test_a_sane_request_id_is_kept_to_the_letter(given: str, kept: bool) -> None:
    door = saying("the")
    said = await Client(door).complete({"X-Request-Id": given})
    outer = said.headers["x-request-id"]
    assert (outer == given) == kept
    assert said.json["id"] == f"cmpl-{outer}"
    assert door.request.request_id == outer


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_has_the_id_that_the_log_has(stream: bool) -> None:
    for door in (client(GONE), Client(Mistaken())):
        said = await door.complete({"X-Request-Id": "mine"}, stream=stream)
        assert said.status >= 500
        assert said.headers["x-request-id"] == "mine"
    refused = await client().complete(prompt="", stream=stream)
    assert refused.headers["x-request-id"]


async def test_an_id_in_the_body_is_second_to_the_headers() -> None:
    client = Client(saying("the"))
    assert (await client.complete(request_id="mine")).json["id"] == "cmpl-mine"
    said = await client.complete({"X-Request-Id": "theirs"}, request_id="mine")
    assert said.json["id"] == "cmpl-theirs"


async def test_the_same_id_gives_the_same_seed_and_another_id_another() -> None:
    seeds = []
    for outer in ("a", "a", "b"):
        door = saying("the")
        await Client(door).complete({"X-Request-Id": outer})
        seeds.append(door.request.sampling.seed)
    assert seeds[0] == seeds[1] != seeds[2]


async def test_a_grammar_that_nobody_can_look_at_now_may_come_again() -> None:
    class Busy(GrammarChecker):
        async def checked(self, grammar: Grammar) -> None:
            raise GrammarCheckBusy("too many")

    door = ServedModel(("tiny",), CODEC, lambda: 200, grammars=Busy())
    said = await Client(FakeDoor(lambda request, leg: ()), door).complete(guided_regex="a")
    assert said.status == 503
    assert said.headers["retry-after"] == "1"
    assert said.json["error"]["message"] == "too many"


@pytest.mark.parametrize("stream", [True, False])
async def test_what_a_client_wrote_at_length_is_not_sent_back_whole(*, stream: bool) -> None:
    """Neither its values nor its names; how it begins and ends is told."""
    long = "begins" + "x" * 100_000 + "ends"
    for body in ({"model": long}, {long: 1, "n": "none"}, {"logit_bias": {long: 1}}):
        said = await client(TokenEvent(CAT)).complete(stream=stream, **body)
        error = said.json["error"]
        assert 400 <= said.status < 500
        assert len(error["message"]) <= LONGEST_MESSAGE
        assert len(error["param"] or "") <= LONGEST_PARAM
    assert shortened(long, 40) == "begins" + "x" * 11 + LEFT_OUT + "x" * 13 + "ends"
