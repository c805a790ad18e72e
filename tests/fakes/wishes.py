"""Sampling parameters of all kinds: as they may be, and as nobody should send them."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from tests.fakes.checkpoints import VOCABULARY

TOKEN = st.integers(0, VOCABULARY - 1)
STRUCTURED = st.sampled_from(
    [
        *({"regex": "[a-c]+"}, {"regex": "(a"}, {"choice": ["a", "bc"]}, {"json": {}}),
        *({"json_object": True}, {"grammar": 'root ::= "a" root'}, {"grammar": "?"}),
        *({"json": "{"}, {"json": {"type": "integer"}}, {"structural_tag": "{}"}, {}),
    ]
)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.floats(0, 5),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(-1, 1000),
    "min_p": st.floats(0, 1),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.001, 1e9),
    "logit_bias": st.dictionaries(TOKEN.map(str), st.floats(-100, 100), max_size=5),
    "allowed_token_ids": st.lists(TOKEN, min_size=2, max_size=5, unique=True),
    "stop_token_ids": st.lists(st.integers(0, 2**31 - 1), max_size=3),
    "seed": st.integers(-(2**63), 2**64 - 1),
    "min_tokens": st.integers(0, 3),
    "max_tokens": st.integers(3, 8),
    "ignore_eos": st.booleans(),
    "prompt_logprobs": st.integers(0, 20),
    "structured_outputs": STRUCTURED,
}
TEXT_ONLY: dict[str, st.SearchStrategy[Any]] = {
    "bad_words": st.lists(st.text(min_size=1, max_size=5).filter(str.strip), max_size=3),
    "n": st.integers(1, 3),
    "stop": st.lists(st.text(min_size=1, max_size=3), max_size=3),
    "truncate_prompt_tokens": st.integers(1, 50),
    "priority": st.integers(-5, 5),
    "return_tokens_as_token_ids": st.booleans(),
}
COMPLETION_ONLY = {"echo": st.booleans(), "logprobs": st.integers(0, 20)}
NAMES = st.sampled_from(["f", "g", "h"])
FUNCTION = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "parameters": st.sampled_from(
            [{}, {"type": "object"}, {"properties": {"a": {"$ref": "#/$defs/a"}}}, {"type": 5}]
        ),
        "strict": st.booleans(),
    },
)
TOOL = st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTION})
CHAT_ONLY: dict[str, st.SearchStrategy[Any]] = {
    "logprobs": st.just(value=True),
    "top_logprobs": st.integers(0, 20),
    "tools": st.lists(TOOL, max_size=3),
    "tool_choice": st.sampled_from(["none", "auto", "required"])
    | st.fixed_dictionaries(
        {"type": st.just("function"), "function": st.fixed_dictionaries({"name": NAMES})}
    ),
    "parallel_tool_calls": st.booleans(),
    "reasoning_effort": st.sampled_from(
        ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
    ),
}
MARK = st.lists(TOKEN, min_size=1, max_size=2)
MARKS = st.lists(MARK, max_size=2)
NODE_ONLY = {
    "logprobs": st.integers(-1, 50),
    "bad_words": st.lists(st.lists(TOKEN, min_size=1, max_size=3), max_size=3),
    "grammar_behind": st.fixed_dictionaries({"closes": MARK}, optional={"opens": MARKS}),
}
WILD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from([-1, 0, 2, 2**31, 2**63, 2**64, -(2**63) - 1, 1e308, 5e-324, VOCABULARY]),
    lambda one: (
        st.lists(one, max_size=3)
        | st.dictionaries(st.text("0123456789-a", max_size=4), one, max_size=3)
    ),
    max_leaves=4,
)
NO_TOKEN = st.sampled_from([-1, VOCABULARY, 2**31 - 1])
BEYOND = (
    st.lists(NO_TOKEN, min_size=1, max_size=2)
    | st.lists(st.lists(NO_TOKEN, min_size=1, max_size=2), min_size=1, max_size=2)
    | st.dictionaries(NO_TOKEN.map(str), st.floats(-100, 100), min_size=1, max_size=2)
)
TOKENS = ("logit_bias", "allowed_token_ids", "stop_token_ids", "bad_words")
Given = dict[str, Any]


def wishes(
    good: Mapping[str, st.SearchStrategy[Any]], others: Mapping[str, object]
) -> st.SearchStrategy[Given]:
    """Some fields as they may be, up to two that are anything, at most one of no token."""
    usual = st.fixed_dictionaries({}, optional=dict(good))
    odd = st.dictionaries(st.sampled_from(sorted({*good, *others})), WILD, max_size=2)
    far = st.dictionaries(st.sampled_from(TOKENS), BEYOND, max_size=1)
    return st.builds(lambda one, two, three: {**one, **two, **three}, usual, odd, far)


def check_refusal(status: int, body: Any, wish: Given) -> None:  # noqa: ANN401
    assert status == 400, body
    root = (body["error"]["param"] or "").partition(".")[0].partition("[")[0]
    assert root in wish, body
    assert body["error"]["message"]
