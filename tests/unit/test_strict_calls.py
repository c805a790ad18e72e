"""Text in which strict functions may be called is read as its grammar leaves it."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from api.reasoning.channels import ChannelReader
from api.tools.call_formats import ANY_OBJECT, seq, split_marker
from api.tools.dialects.known import DIALECTS
from api.tools.strict import ReasoningInGrammar, text_with_calls
from api.tools.tool_choice import OfferedFunctions, ToolSettings
from engine.grammars.byte_tokens import END
from engine.grammars.sources import limits, to_llguidance
from engine.request import Grammar
from tests.fakes.call_starts import mark_of, start_of
from tests.fakes.tools import Call, Read, offered, read, tool
from tests.unit.test_calls_beside_forms import (
    FAMILIES,
    TOKENIZER,
    TRIP,
    check_trip,
    fits,
)

HELD = [(name, template) for name, template in FAMILIES if DIALECTS[name].start_markers]
BARE, UNHELD = ("llama3_json", "llama4_pythonic", "pythonic"), ("openai", "xlam")
TOGETHER = {
    *((name, "") for name in ("apertus", "apriel", "cohere", "deepseek_v3", "deepseek_v31")),
    *((name, "") for name in ("deepseek_v41", "granite", "hunyuan_a13b", "hy3", "kimi_k2")),
    *((name, "") for name in ("hy_v4", "kimi_k3", "lfm2", "minimax_m2", "minimax_m3")),
    *((name, "") for name in ("mistral", "nemotron", "olmo3", "step3")),
    ("phi4_mini_json", ""),
    *(("deepseek_v32", template) for template in ("", "function_calls")),
}
"""Calls behind one mark."""
SEEDS = range(12)
LONGEST = 9_000  # letters
PLAIN = [*range(32, 127), 10]  # letters, of which texts are made mostly
TEXTS = ("", "Hi.", "\n\n", "a < b, {}", "é 東", '{"name": "trip", "arguments": {}}')


def strict(name: str, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    one = tool(name, schema)
    one["function"]["strict"] = True
    return one


TOOLS = offered([strict("trip", TRIP), strict("stop"), tool("clock")])
BOUND = offered([strict("trip", TRIP), strict("stop")])


def grammar_of(
    name: str,
    template: str = "",
    tools: OfferedFunctions = TOOLS,
    *,
    parallel: bool = True,
    plain: Sequence[str] = (),
) -> Grammar:
    use = ToolSettings(tools, "auto", parallel=parallel)
    grammar = text_with_calls(use, DIALECTS[name], template, ReasoningInGrammar(plain))
    assert grammar
    return grammar


def walked(grammar: Grammar, begun: str, seed: int) -> str:
    """A text that begins so, up to where it may end; all else by chance."""
    dice = random.Random(seed)
    matcher = LLMatcher(TOKENIZER, to_llguidance(grammar), log_level=0, limits=limits())
    said = bytearray(begun.encode())
    assert matcher.consume_tokens([*said]), matcher.get_error()
    while True:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        ways = np.unpackbits(mask, bitorder="little").nonzero()[0].tolist()
        if END in ways:
            return said.decode()
        assert ways
        assert len(said) < LONGEST
        plain = dice.random() < 0.8 and [one for one in ways if one in PLAIN]
        way = dice.choice(plain or ways)
        said.append(way)
        assert matcher.consume_token(way)


def read_by(name: str, text: str, tools: OfferedFunctions = TOOLS) -> Read:
    return read(DIALECTS[name].parser, [*text], tools)


def checked(call: Call) -> str:
    """Its function, the arguments of which fit."""
    name, arguments, whole = call
    assert whole
    if name == "trip":
        check_trip(json.loads(arguments))
    else:
        assert json.loads(arguments) == {}
    return name


@pytest.mark.parametrize(("name", "template"), HELD)
def test_strict_calls_fit_wherever_they_come(name: str, template: str) -> None:
    mark, called, most = start_of(name, template), set[str](), 0
    grammar = grammar_of(name, template, BOUND)
    for seed in SEEDS:
        text = walked(grammar, f"Hi. {mark}", seed)
        once = read_by(name, text, BOUND)
        twice = read_by(name, walked(grammar, f"{text} And {mark}", seed), BOUND)
        assert once.content == "Hi."
        assert twice.content.replace(" ", "") == "Hi.And"
        assert len(twice.calls) > len(once.calls) > 0
        most = max(most, len(once.calls))
        called.update(map(checked, twice.calls))
    assert called == {"trip", "stop"}
    assert (most > 1) == ((name, template) in TOGETHER)


@pytest.mark.parametrize(("name", "template"), HELD)
def test_text_stays_what_it_is(name: str, template: str) -> None:
    grammar, mark = grammar_of(name, template), mark_of(DIALECTS[name], template)
    begun = [mark[:size] for size in range(1, len(mark))]
    for text in (*TEXTS, *begun, *(f"a {one} b" for one in begun), mark[:2] + mark[:-1]):
        assert fits(grammar, text), text
        assert read_by(name, text) == Read(text, [])
    for text in (mark, f"a {mark}", f"{mark} b", f"{mark}trap"):
        assert not fits(grammar, text), text


@pytest.mark.parametrize(("name", "template"), HELD)
def test_who_reads_finds_calls_behind_the_marks_that_are_held_alone(
    name: str, template: str
) -> None:
    dialect = DIALECTS[name]
    mark, grammar = mark_of(dialect, template), grammar_of(name, template)
    assert mark in dialect.start_markers
    for other in set(dialect.start_markers) - {mark}:
        assert not fits(grammar, other)
        assert fits(grammar, other[:-1])


@pytest.mark.parametrize(("name", "template"), HELD)
def test_other_functions_take_anything_and_only_what_was_offered_is_called(
    name: str, template: str
) -> None:
    said = {"a": [{"b": 1}], "c": "x", "d": 5}
    keys = {key: {"enum": [value]} for key, value in said.items()}
    exact = {"properties": keys, "required": [*keys], "additionalProperties": False}
    for called in ("clock", "trap"):
        answer = exactly(name, template, called, exact)
        assert fits(grammar_of(name, template), answer) == (called == "clock"), answer
        [(function, arguments, whole)] = read_by(name, answer).calls
        assert (function, json.loads(arguments), whole) == (called, said, True)


def exactly(name: str, template: str, called: str, schema: Mapping[str, Any]) -> str:
    """A call, as the dialect has it, of arguments that have one value each."""
    if "gemma" in name:  # which writes none that is listed
        opens, closes, quote = DIALECTS[name].markers
        return f"{opens}call:{called}{{a:[{{b:1}}],c:{quote}x{quote},d:5}}{closes}"
    grammar = grammar_of(name, template, offered([strict(called, schema)]), parallel=False)
    return walked(grammar, start_of(name, template), 0)


@pytest.mark.parametrize(("name", "template"), HELD)
def test_one_call_is_the_last_where_calls_are_not_parallel(name: str, template: str) -> None:
    mark = start_of(name, template)
    alone, any_ = (grammar_of(name, template, BOUND, parallel=one) for one in (False, True))
    one = walked(alone, f"Hi. {mark}", 0)
    again = f"{one}\n{one.removeprefix('Hi. ')}"
    assert fits(any_, again)
    assert len(read_by(name, one).calls) == 1
    assert fits(alone, one)
    assert fits(alone, again) is bool(DIALECTS[name].wrapper_tokens)


def test_calls_that_no_mark_tells_from_text_are_not_held() -> None:
    use = ToolSettings(TOOLS, "auto")
    assert {name for name, one in DIALECTS.items() if not one.start_markers} == {*BARE, *UNHELD}
    assert {name for name, one in DIALECTS.items() if one.unmarked} == {*BARE}
    for name in UNHELD:
        assert text_with_calls(use, DIALECTS[name], "") is None


def test_tokens_around_text_and_marks_of_reasoning_are_part_of_it() -> None:
    command = grammar_of("cohere", plain=["<think>", "</think>"])
    for text in ("<|START_RESPONSE|>Hi.<|END_RESPONSE|>", "<think>Hm.</think> Hi."):
        source = to_llguidance(command, {"<think>": 7, "<|START_RESPONSE|>": 8}.get)
        assert "<[7]>" in source
        assert "<[8]>" in source
        assert fits(command, text)


def test_a_large_schema_stands_in_a_grammar_once() -> None:
    for name in ("hermes", "granite", "qwen3_coder", "kimi_k2"):
        schema = {"properties": {"a": {"enum": ["long" * 100]}}, "required": ["a"]}
        grammar = grammar_of(name, "", offered([strict("f", schema)]))
        assert grammar.source.count("long" * 100) <= 2


@pytest.mark.parametrize(("name", "template"), HELD)
def test_xgrammar_is_told_nothing_that_it_does_not_know(name: str, template: str) -> None:
    for grammar in (grammar_of(name, template), messages_grammar(TOOLS)):
        assert '"elements":[]' not in grammar.source
    whole = json.loads(grammar_of(name, template, BOUND).source)["format"]["tags"][0]
    assert not whole["end"]
    assert '"star"' not in json.dumps(whole)  # in a tag that has no end


def test_a_hundred_calls_may_stand_behind_one_mark() -> None:
    one = '{"name": "stop", "arguments": {}}'
    for most in (1, 100, 101):
        answer = f"[TOOL_CALLS][{', '.join([one] * most)}]"
        assert fits(grammar_of("mistral"), answer) == (most <= 100)


def test_calls_have_to_begin_with_a_mark_to_be_told_apart() -> None:
    assert ANY_OBJECT == {"type": "object"}
    with pytest.raises(TypeError, match="begin"):
        split_marker(seq("a"))


def in_channels(text: str, *, begun: bool = False) -> Read:
    reader = ChannelReader(begun)
    content = reader.read(text)[1] + reader.finish()[1]
    return read(DIALECTS["openai"].parser, [*content], BOUND)


def messages_grammar(tools: OfferedFunctions = BOUND, *, begun: bool = False) -> Grammar:
    use, aloud = (
        ToolSettings(tools, "auto"),
        ReasoningInGrammar(channels=True, mid_message=begun),
    )
    grammar = text_with_calls(use, DIALECTS["openai"], "", aloud)
    assert grammar
    return grammar


THOUGHT = "<|channel|>analysis<|message|>Hm, to=functions.trip.<|end|><|start|>assistant"
FINAL = "<|channel|>final{}<|message|>Hi.".format
CALLS = (
    "<|channel|>commentary to=functions.",
    " to=functions.",
    f"{THOUGHT} to=functions.",
    f"{THOUGHT}<|channel|>commentary to=functions.",
)


@pytest.mark.parametrize("call", CALLS)
def test_calls_in_channels_fit(call: str) -> None:
    called = set[str]()
    for seed in SEEDS:
        text = walked(messages_grammar(), call, seed)
        assert fits(messages_grammar(begun=True), f"Hm.<|end|><|start|>assistant{text}")
        called.update(map(checked, in_channels(text).calls))
    assert called == {"trip", "stop"}


@pytest.mark.parametrize("begun", [False, True])
def test_messages_in_channels_stay_what_they_are(begun: bool) -> None:
    grammar = messages_grammar(begun=begun)
    before = "Hm.<|end|><|start|>assistant" if begun else ""
    for text in (FINAL(""), FINAL(" <|constrain|>json"), THOUGHT + FINAL(""), FINAL("")[:-3]):
        assert fits(grammar, before + text)
        assert not in_channels(before + text, begun=begun).calls
    for header in (f"commentary{CALLS[1]}", "analysis to=functions.", "final to=functions."):
        for name in ("trip", "trap", "stops"):
            bad = f"<|channel|>{header}{name} <|constrain|>json<|message|>{{}}"
            assert in_channels(before + bad, begun=begun).calls[0][0] == name
            assert not fits(grammar, before + bad)
    for spelt in ("<|start|>assistant to=functions.stop", "<|channel|>to=functions.trip"):
        bad = f'{FINAL("")}{spelt}<|message|>{{"x": 1}}'
        assert in_channels(before + bad, begun=begun).calls
        assert not fits(grammar, before + bad)
    assert fits(grammar, "Hm.") is begun
    for text in ("<|channel|>", f"{FINAL('')}<|end|>", f"{CALLS[1]}stop"):
        assert not fits(grammar, before + text)


def test_functions_that_are_not_strict_take_anything_in_channels() -> None:
    grammar = messages_grammar(TOOLS)
    for header in (" <|constrain|>json", "<|channel|>commentary json", "", " code"):
        call = f'to=functions.clock{header}<|message|>{{"a": [null]}}'
        assert fits(grammar, f" {call}")
    assert (
        text_with_calls(
            ToolSettings(TOOLS, "auto"), DIALECTS["hermes"], "", ReasoningInGrammar((), True)
        )
        is None
    )
