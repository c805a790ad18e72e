"""What a body must not say, and how the client is told."""

import re
from collections.abc import Mapping

import msgspec
import pytest

from api.bodies import MOST_MESSAGES, MOST_TOOLS, read_chat, read_completion
from api.body_limits import MOST_BRACKETS
from api.errors import BadRequest, ContextTooLong, ModelNotFound, NoTokenizer
from api.out_of_range import LARGEST_SEARCHED
from api.served import ServedModel, read_leg_params
from api.text_requests import MOST_CALLS
from api.wire import MOST_LEVELS, TOO_DEEP
from tests.fakes.asking import Fields, chat, complete


@pytest.mark.parametrize("fields", [{"max_tokens": 199}, {"prompt": [1] * 200}])
async def test_what_does_not_fit_the_context_is_refused(fields: Fields) -> None:
    with pytest.raises(ContextTooLong) as refused:
        await complete(fields)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["the", ""]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[1], "a", 2]}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [[1, 2**31]]}, "prompt[0][1]"),
        ({"prompt": [5000]}, "prompt"),
        ({"prompt": [[1], [5000]]}, "prompt"),
        ({"prompt": ["a"] * (MOST_CALLS + 1)}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 100}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"max_tokens": 2**64}, "max_tokens"),
        ({"max_completion_tokens": 2**31}, "max_completion_tokens"),
        ({"min_tokens": 2**70}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 2**64}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": 2**64}, "seed"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"seed": "a"}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a" * 20_000]}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_usage": 1}},
            "stream_options.include_usage",
        ),
        ({"model": 5}, "model"),
        ({"pdserve": {"timings": "yes"}}, "pdserve.timings"),
        ({"kv_transfer_params": []}, "kv_transfer_params"),
        ({"echo": 1}, "echo"),
        ({"echo": True, "max_tokens": 0, "n": 0}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": -2}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncation_side": "middle"}, "truncation_side"),
        ({"priority": 2**63}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 3, "n": 2}, "best_of"),
        ({"best_of": True, "n": 1}, "best_of"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"5000": 1}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [5000]}, "allowed_token_ids"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"bad_words": "word"}, "bad_words"),
        ({"bad_words": ["a", " "]}, "bad_words"),
        ({"bad_words": [[1]]}, "bad_words[0]"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {}}, "response_format.type"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"guided_choice": "b"}, "guided_choice"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens"),
    ],
)
async def test_a_wrong_field_is_named(fields: Fields, param: str) -> None:
    with pytest.raises(BadRequest) as refused:
        await complete(fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b'"a"', b"null", b"\xff\xfe", b'{"prompt": "\\ud800"}'),
        *(b"[" * 100_000, b'{"a":' * 100_000, b'{"seed": 1e999}', b'{"prompt": NaN}'),
    ],
)
def test_any_bytes_are_refused_politely(body: bytes) -> None:
    for read in (read_completion, read_chat):
        with pytest.raises(BadRequest):
            read(body)


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(BadRequest) as refused:
        read_chat(b"{}")
    assert refused.value.param == "messages"


async def test_other_names_are_not() -> None:
    with pytest.raises(ModelNotFound) as refused:
        await complete({"model": "gpt-9"})
    assert (refused.value.status, refused.value.code) == (404, "model_not_found")


async def test_without_a_tokenizer_there_is_no_text() -> None:
    door = ServedModel(("tiny",), None, lambda: 10)
    for ask in (complete, chat):
        with pytest.raises(NoTokenizer):
            await ask(door=door)


async def test_params_that_are_no_ticket_are_refused() -> None:
    with pytest.raises(BadRequest) as refused:
        await complete(
            {"kv_transfer_params": {"do_remote_prefill": True}}, legs=read_leg_params
        )
    assert refused.value.param == "kv_transfer_params"


@pytest.mark.parametrize("end", ['"}', '", "n": 1}'])
def test_half_of_a_surrogate_pair_is_said_to_be_that_near_the_end_too(end: str) -> None:
    with pytest.raises(BadRequest, match="surrogate pair"):
        read_completion(b'{"prompt": "a\\ud83d' + end.encode())
    assert read_completion(b'{"prompt": "a\\ud83e\\udd8a"}').prompt == "a\N{FOX FACE}"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"reasoning_effort": "hihg"},
            "Invalid enum value 'hihg'; it may be 'high'",
        ),
        ({"tool_choice": "always"}, "'always'; it may be 'auto', 'none', 'required'"),
        (
            {"tools": [{"type": "web"}]},
            ".type: it may be 'function' or 'custom', not",
        ),
        ({"response_format": {"type": "xml"}}, "it may be 'json_object', 'json_schema'"),
        ({"logit_bias": {"the": 1}}, "logit_bias: of a key: Expected `int`, got `str`"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
    ],
)
async def test_what_a_field_may_be_is_told(fields: Fields, said: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(said)) as refused:
        await chat(fields)
    assert "echo" not in str(refused.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "The body is empty"),
        (b'{"messages": [{"role": "\xff"}]}', r"it is not UTF-8 \(byte 24\)"),
        (b'{"messages": "\\ud83d\\n"}', r"\\ud83d is half of a surrogate pair"),
        (b'{"messages": "\\ud83d\\ude00"', "truncated"),
    ],
)
def test_what_is_wrong_with_bytes_is_told(body: bytes, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        read_chat(body)


@pytest.mark.parametrize(
    ("data", "field", "number"),
    [
        (b'{"temperature": 1e999}', "temperature", "1e999"),
        (b'{"messages": [{"x": {"y": [0, -1e999]}}]}', "messages[0].x.y[1]", "-1e999"),
        (b'{"a": "1e999", "logit_bias": {"1": 2, "5": 1e400}}', "logit_bias.5", "1e400"),
    ],
)
def test_a_number_out_of_range_is_named(data: bytes, field: str, number: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_chat(data)
    assert str(refused.value) == f"{field}: the number {number} is out of range"
    assert refused.value.param == field


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": 1e999, "b": [}',
        b'{"a": [1e999, }',
        b'{"a": 1e999',
        b'{"a": 1e999, "b": %b%b]}' % (b"[" * 300, b"]" * 300),
        b'{"a": 1e999, "a": 1}',
    ],
)
def test_a_body_with_more_than_one_fault_is_refused_as_well(data: bytes) -> None:
    with pytest.raises(BadRequest, match="The body is not valid JSON: Number out of range"):
        read_chat(data)


def test_a_large_body_is_not_searched_for_a_number() -> None:
    large = b'{"a": "%b", "b": 1e999}' % (b"a" * LARGEST_SEARCHED)
    with pytest.raises(BadRequest, match="Number out of range"):
        read_chat(large)
    with pytest.raises(BadRequest, match="Number out of range"):
        read_chat(b"[1e999]")


def test_a_body_that_is_nested_too_deeply_is_told_so() -> None:
    """Whatever the parser endures, more in later Pythons; brackets in texts are none."""
    text = rb'"[{\\\"[[\\", "]", ' + b"[], " * 600
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        body = b'{"messages": [], "x": [%b%b1%b]}'
        deepest = MOST_LEVELS - 2
        assert read_chat(body % (text, opening * deepest, closing * deepest)).messages == []
        with pytest.raises(BadRequest) as refused:
            read_chat(body % (text, opening * (deepest + 1), closing * (deepest + 1)))
        assert str(refused.value) == f"The body is nested too deeply: {TOO_DEEP}"


def test_lists_that_would_hold_up_everybody_are_refused() -> None:
    message, tool = {"role": "user", "content": "a"}, {"type": "function"}
    read_chat(msgspec.json.encode({"messages": [message] * MOST_MESSAGES}))
    many: Mapping[str, object] = {"messages": [message] * (MOST_MESSAGES + 1)}
    with pytest.raises(BadRequest, match="messages: Expected `array` of length <= 20000"):
        read_chat(msgspec.json.encode(many))
    many = {"messages": [message], "tools": [tool] * (MOST_TOOLS + 1)}
    with pytest.raises(BadRequest, match="tools: Expected `array` of length <= 4096"):
        read_chat(msgspec.json.encode(many))


def test_a_body_of_brackets_is_refused_before_it_is_parsed() -> None:
    kept = b'{"messages": [], "x": [%b[]]}' % (b"[]," * (MOST_BRACKETS - 4))
    assert read_chat(kept).messages == []
    with pytest.raises(BadRequest, match="more than 500000 opening brackets"):
        read_chat(b'{"messages": [], "x": [%b[]]}' % (b"[]," * MOST_BRACKETS))
