"""The messages of a body, block by block, become the messages of a chat."""

from typing import Any

import msgspec
import pytest

from api.errors import BadRequest
from api.messages.blocks import messages_of
from api.messages.bodies import read_messages
from api.messages.signatures import hidden_thinking_of, signature_of
from api.messages.to_chat import chat_of

Given = dict[str, Any]
HI: Given = {"role": "user", "content": "a"}
BODY: Given = {"messages": [HI], "max_tokens": 9}


def text(*said: str) -> list[Given]:
    return [{"type": "text", "text": one} for one in said]


def user(*blocks: Given) -> Given:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Given) -> Given:
    return {"role": "assistant", "content": list(blocks)}


def block(said: str) -> Given:
    """As Anthropic's client sends back what it got."""
    return {"type": "text", "text": said, "citations": None, "cache_control": None}


def used(name: str, **given: object) -> Given:
    return {"type": "tool_use", "id": f"c_{name}", "name": name, "input": given, "caller": None}


def result(name: str, *said: Any, **more: object) -> Given:  # noqa: ANN401
    content = {"content": said[0]} if said else {}
    return {"type": "tool_result", "tool_use_id": f"c_{name}", **content, **more}


def thought(said: str, signature: str = "x") -> Given:
    return {"type": "thinking", "thinking": said, "signature": signature}


def call(name: str, arguments: str = "{}") -> Given:
    function = {"name": name, "arguments": arguments}
    return {"id": f"c_{name}", "type": "function", "function": function}


def says(said: list[Given] | None, **more: object) -> Given:
    return {"role": "assistant", "content": said, **more}


USER = {"role": "user", "content": text("a")}
BACK = {"role": "tool", "tool_call_id": "c_f", "name": "f", "content": text("done")}
CALLED = says(None, tool_calls=[call("f")])


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([HI], [USER]),
        ([user(*text("a", "b"))], [{"role": "user", "content": text("a", "b")}]),
        ([HI, HI], [{"role": "user", "content": text("a", "a")}]),
        ([user()], [{"role": "user", "content": []}]),
        ([HI, {"role": "assistant", "content": "b"}], [USER, says(text("b"))]),
        (
            [HI, assistant(block("b")), assistant(block("c"))],
            [USER, says(text("b", "c"))],
        ),
        ([HI, assistant(), HI], [{"role": "user", "content": text("a", "a")}]),
        (
            [HI, assistant(block("b"), used("f", city="Zürich", n=1))],
            [USER, says(text("b"), tool_calls=[call("f", '{"city": "Zürich", "n": 1}')])],
        ),
        ([assistant(used("f")), user(result("f", "done"))], [CALLED, BACK]),
        ([assistant(used("f")), user(result("f", text("done")))], [CALLED, BACK]),
        (
            [assistant(used("f")), user(result("f"))],
            [CALLED, {**BACK, "content": []}],
        ),
        (
            [assistant(used("f")), user(result("f", "done", is_error=True))],
            [CALLED, {**BACK, "content": text("Error:", "done")}],
        ),
        (
            [
                assistant(used("f")),
                user(result("f", [{"type": "tool_reference", "tool_name": "g"}])),
            ],
            [CALLED, {**BACK, "content": text("g")}],
        ),
        (
            [assistant(used("f")), user(*text("a"), result("f", "done"))],
            [CALLED, BACK, USER],
        ),
        (
            [user(result("x", "done"))],
            [{"role": "tool", "tool_call_id": "c_x", "content": text("done")}],
        ),
        (
            [assistant(used("f"), used("g")), user(result("f", "done"), result("g", "too"))],
            [
                says(None, tool_calls=[call("f"), call("g")]),
                BACK,
                {"role": "tool", "tool_call_id": "c_g", "name": "g", "content": text("too")},
            ],
        ),
        (
            [assistant(thought("t"), block("b"), used("f"))],
            [says(text("b"), reasoning_content="t", tool_calls=[call("f")])],
        ),
        (
            [assistant(thought("t"), block("b"), thought("u"), block("c"))],
            [says(text("b", "c"), reasoning_content="t\nu")],
        ),
        (
            [assistant(thought("", signature_of("ü", hidden=True)), block("b"))],
            [says(text("b"), reasoning_content="ü")],
        ),
        ([assistant(thought("", "EqQBCg=="), block("b"))], [says(text("b"))]),
        (
            [assistant({"type": "redacted_thinking", "data": "x"}, block("b"))],
            [says(text("b"))],
        ),
        (
            [{"role": "system", "content": "s"}, HI],
            [{"role": "system", "content": text("s")}, USER],
        ),
        (
            [HI, {"role": "system", "content": text("s")}],
            [{"role": "user", "content": text("a", "s")}],
        ),
        (
            [HI, assistant(block("b")), {"role": "system", "content": "s"}, HI],
            [USER, says(text("b")), {"role": "user", "content": text("s", "a")}],
        ),
        (
            [HI, {"role": "system", "content": []}, HI],
            [{"role": "user", "content": text("a", "a")}],
        ),
        (
            [
                assistant(used("f")),
                {"role": "system", "content": "s"},
                {"role": "system", "content": "t"},
                user(result("f", "done")),
                HI,
            ],
            [CALLED, {**BACK, "content": text("done", "s", "t")}, USER],
        ),
        (
            [assistant(used("f")), {"role": "system", "content": "s"}],
            [CALLED, {"role": "user", "content": text("s")}],
        ),
        (
            [
                assistant(used("f")),
                user(result("f", "done")),
                {"role": "system", "content": "s"},
            ],
            [CALLED, {**BACK, "content": text("done", "s")}],
        ),
    ],
)
def test_blocks_become_messages(given: list[Given], messages: list[Given]) -> None:
    assert messages_of(given, None) == messages


@pytest.mark.parametrize(
    ("system", "first"),
    [
        ("s", text("s")),
        (text("s", "t"), text("s", "t")),
        ([{**text("s")[0], "cache_control": {"type": "ephemeral"}}], text("s")),
        ([*text("x-anthropic-billing-header: cch=7;"), *text("s")], text("s")),
    ],
)
def test_what_says_how_things_are_done_stands_first(system: Any, first: list[Given]) -> None:  # noqa: ANN401
    assert messages_of([HI], system) == [{"role": "system", "content": first}, USER]
    later = {"role": "system", "content": "u"}
    assert messages_of([later, HI], system)[0]["content"] == [*first, *text("u")]


def test_nothing_but_a_billing_line_says_nothing() -> None:
    assert messages_of([HI], text("x-anthropic-billing-header: cch=7;")) == [USER]


@pytest.mark.parametrize("said", ["", "Hm.\n ü 🦊 \x00"])
def test_what_is_hidden_in_a_signature_is_found_again(said: str) -> None:
    assert hidden_thinking_of(signature_of(said, hidden=True)) == said
    assert hidden_thinking_of(signature_of(said, hidden=False)) == ""
    assert said == "" or said not in signature_of(said, hidden=True)


@pytest.mark.parametrize("signature", ["", "pdserve:?", "pdserve:/w==", "pdserve:ü", "Eq=="])
def test_a_signature_that_is_not_ours_says_nothing(signature: str) -> None:
    assert hidden_thinking_of(signature) == ""


def refused(body: object) -> BadRequest:
    with pytest.raises(BadRequest) as told:
        chat_of(read_messages(msgspec.json.encode(body)))
    assert told.value.param is None or told.value.param in str(told.value)
    return told.value


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "villain", "content": "a"}, "role"),
        ({"role": "user"}, "content"),
        ({"role": "user", "content": None}, "content"),
        ({"role": "user", "content": 7}, "content"),
        ({"role": "user", "content": ["a"]}, "content[0]"),
        (user({"type": "image", "source": {}}), "content[0].type"),
        (user({"type": "document", "source": {}}), "content[0].type"),
        (user({"type": "search_result"}), "content[0].type"),
        (user(used("f")), "content[0].type"),
        (user({"text": "a"}), "content[0].type"),
        (user({"type": 7}), "content[0].type"),
        (user({"type": "text"}), "content[0].text"),
        (user({"type": "text", "text": 7}), "content[0].text"),
        (user({"type": "tool_result"}), "content[0].tool_use_id"),
        (user(result("f", [{"type": "image"}])), "content[0].content[0].type"),
        (
            user(result("f", [{"type": "tool_reference"}])),
            "content[0].content[0].tool_name",
        ),
        (user(result("f", 7)), "content[0].content"),
        (assistant(result("f")), "content[0].type"),
        (assistant({"type": "server_tool_use", "id": "x"}), "content[0].type"),
        (assistant({"type": "tool_use", "id": "", "name": "f", "input": {}}), "content[0].id"),
        (assistant({"type": "tool_use", "id": "c", "name": "f"}), "content[0].input"),
        (
            assistant({"type": "tool_use", "id": "c", "name": "f", "input": "{}"}),
            "content[0].input",
        ),
        (assistant({"type": "thinking"}), "content[0].thinking"),
        ({"role": "system", "content": [{"type": "image"}]}, "content[0].type"),
    ],
)
def test_a_block_that_cannot_be_read_is_named(message: Given, param: str) -> None:
    error = refused({**BODY, "messages": [HI, message]})
    assert str(error.param) == f"messages[1].{param}"


@pytest.mark.parametrize(
    "message",
    [
        assistant(),
        assistant({"type": "redacted_thinking", "data": "x"}),
        assistant(thought("", "EqQBCg==")),
        {"role": "system", "content": []},
    ],
)
def test_messages_without_anything_to_read_are_refused(message: Given) -> None:
    assert refused({**BODY, "messages": [message, message]}).param == "messages"


def test_an_input_that_is_too_deep_is_refused_and_nothing_worse() -> None:
    told = list[bool]()
    for depth in range(450, 550):
        given = b'{"a":' * depth + b"{}" + b"}" * depth
        used = b'{"type":"tool_use","id":"c","name":"f","input":' + given + b"}"
        said = b'{"role":"assistant","content":[' + used + b"]}"
        body = b'{"max_tokens":9,"messages":[' + said + b"]}"
        try:
            chat_of(read_messages(body))
        except BadRequest:
            told.append(False)
        else:
            told.append(True)
    assert told == sorted(told, reverse=True)
    assert set(told) == {True, False}
