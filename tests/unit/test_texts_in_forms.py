"""Texts of Lark grammars and regular expressions, in JSON strings and up to marks."""

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from llguidance import LLMatcher

from engine.errors import GrammarRefused
from engine.grammars.quoted_regex import quoted_regex, quoted_text
from engine.grammars.sources import to_llguidance
from engine.grammars.structural_tags import LarkText, Sequential, Tag, structural_tag_of
from engine.grammars.texts import text_in_json, text_until
from engine.request import Grammar
from tests.unit.test_calls_beside_forms import TOKENIZER, fits

ODD = st.text(st.sampled_from('ab "\\/\n\r\t\x01\x0b\x1f\x7fé🦊<]-'), max_size=6)
PATTERNS = [
    *(".*", "(?s:.*)", "(?R).*", r"[^\n]*", r'[^"\\]*', r'["\\]+|a', r"[\x00-\x1f]*", r"\s+b?"),
    *(r"\S*", r"\W*", r"\D*", r"[\D&&[^a]]*", r"[[:cntrl:]]+", r"[]a]+", r"[^]a]*", r"[-a\]]+"),
    *(r"\pC*", r"\P{L}+", r"\n|\r\n", r"\x0b\x{1}\u0001\u{22}\U0000005c", r"\"\\\/", "a\n"),
    *(r"(?:a|\n){2,3}", r"(?P<x>\t)?(b)+", r"(?i)A\n", r"((?s).)\n.", r"(?i:[^B])*", r"a\/b"),
    *("[A-\\]]+", "[[ab]\n]+", "[^[ab]\n]*", r"\v*\f?", '"+', "\t| "),
]
PATCH = r"""
start: begin hunk+ end
begin: "*** Begin" LF   // of a patch
end: "*** End" LF?
hunk: "+" /(.*)/ LF -> line
    | "@@ " NAME [" " "x".."z"] LF
NAME: LETTER (LETTER | "_")~0..3 | "\""i
%import common.LF
%import common (LETTER, WS)
"""
WHOLE = '*** Begin\n+a "b"\\n\t\n@@ a_ z\n+\x01é\n*** End'
NESTED = 'start: e\n?e: t ("+" t)*\nt: /[0-9]+/ | "(" e ")"\n%ignore " "'
LINES = 'start: l\nl: /.+/ | l "\\n" l'


def inside(text: str) -> str:
    """What stands between the quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def lark(source: str) -> str:
    return LLMatcher.grammar_from_lark(source)


def takes(grammar: str, text: str) -> bool:
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    letters = list(text.encode())
    return matcher.try_consume_tokens(letters) == len(letters) and matcher.is_accepting()


@pytest.mark.parametrize("pattern", PATTERNS)
@given(ODD)
@example("a\n")
@example('"\\')
def test_a_pattern_matches_what_json_says_as_it_matches_the_text(
    pattern: str, text: str
) -> None:
    plain = takes(lark(f"start: X\nX: /{pattern}/"), text)
    assert takes(lark(f"start: X\nX: /{quoted_regex(pattern)}/"), inside(text)) == plain
    assert not takes(lark(f"start: X\nX: /{quoted_regex(pattern)}/"), f'{inside(text)}"')


@given(st.text())
def test_a_text_stands_in_json_as_json_has_it(text: str) -> None:
    assert quoted_text(text) == inside(text)


@pytest.mark.parametrize("pattern", ["(?x)a b", "(?:(?x:a))", "a\\", "[a"])
def test_what_cannot_be_rewritten_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarRefused):
        quoted_regex(pattern)


@pytest.mark.parametrize(
    ("text", "fitting"),
    [
        (WHOLE, True),
        (f"{WHOLE}\n", True),
        (WHOLE.replace("a_ z", '"'), True),
        (WHOLE.replace("\t\n", "\t"), True),
        (WHOLE[:-1], False),
        (WHOLE.replace("a_", "a_bcd"), False),
        (WHOLE.replace("z", "w"), False),
        (WHOLE.replace("+a", "a"), False),
        ("*** Begin\n*** End", False),
    ],
)
def test_a_grammar_takes_the_same_texts_wherever_they_stand(text: str, fitting: bool) -> None:
    said = json.dumps(text, ensure_ascii=False)
    assert takes(lark(text_in_json(PATCH)), said) is fitting
    for ends in (["</p>"], ["\n</p>\n", "<|x|>"]):
        assert takes(lark(text_until(PATCH, ends)), text + ends[0]) is fitting
        assert takes(lark(text_until(PATCH, ends)), text + ends[-1]) is fitting
    assert takes(lark(text_until(PATCH, ())), text) is fitting


@given(ODD)
def test_so_it_does_where_terminals_are_cut_out_of_each_other(text: str) -> None:
    source = 'start: A B*\nA: /(?s:.)*/ & ~(/(?s:.*)/ ("b" | "\\n") /(?s:.*)/)\nB: ~"b" & /./\n'
    found = takes(lark(text_in_json(source)), json.dumps(text, ensure_ascii=False))
    assert found == takes(lark(text_until(source, ())), text)
    assert found == bool(re.fullmatch(r"[^b\n]*[^b\n]*", text))


@pytest.mark.parametrize(
    ("text", "fitting"), [("1+(2 + 3) ", True), ("((1))", True), ("(1", False), ("12 3", False)]
)
def test_a_grammar_may_recur_in_a_json_string(text: str, fitting: bool) -> None:
    assert takes(lark(text_in_json(NESTED)), f'"{text}"') is fitting


def test_what_could_never_end_is_refused() -> None:
    with pytest.raises(GrammarRefused, match="go on with a quote"):
        text_in_json(LINES)
    with pytest.raises(GrammarRefused, match="stands as it is"):
        text_until(NESTED, ["x"])


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "start"),
        ('a: "b"', "start"),
        ("start: a", "rule a"),
        ('start: "a', "line 1"),
        ('start: "a"\nb: (\n', "line 3"),
        ('start: ("a" | "b"', "')'"),
        ('start: "a" <b>', "<b> is not"),
        ("start: <[7]>", "is not"),
        ("start: @g0", "@ is not"),
        ("start: %json {}", "%json is not"),
        ('start: %regex {"substring_chars": "a"}', "%regex is not"),
        ('%llguidance {"no_forcing": true}\nstart: "a"', "%llguidance is not"),
        ("%declare A\nstart: A", "%declare is not"),
        ('start[lazy]: "a"', "lazy"),
        ('start: "a"{3,2}', "repetitions"),
        ('start: "a"~20000', "repetitions"),
        ('start: "a"\nstart: "b"', "twice"),
        ('A: "a"\nstart: A\nA: "b"', "twice"),
        ("%import python.X\nstart: X", "common"),
        ("\n".join(["start: r0", *(f'r{n}: "a"' for n in range(1_000))]), "1000"),
    ],
)
@pytest.mark.parametrize("as_json", [True, False])
def test_what_is_no_grammar_of_such_texts_is_refused(
    source: str, why: str, as_json: bool
) -> None:
    with pytest.raises(GrammarRefused, match=re.escape(why)):
        text_in_json(source) if as_json else text_until(source, ["x"])


@pytest.mark.parametrize("source", ['%llguidance {}\nstart[capture="x"]: "a"', '!start.2: "a"'])
def test_what_says_nothing_of_a_text_is_passed_over(source: str) -> None:
    assert takes(lark(text_in_json(source)), '"a"')


def test_they_are_parts_of_structural_tags() -> None:
    tagged = Tag("<p>", LarkText(PATCH), "</p>")
    grammar = Grammar("structural_tag", structural_tag_of(tagged))
    assert fits(grammar, f"<p>{WHOLE}</p>")
    assert not fits(grammar, f"<p>{WHOLE}")
    both = structural_tag_of(Sequential((LarkText(PATCH, json=True), tagged)))
    assert fits(Grammar("structural_tag", both), f"{json.dumps(WHOLE)}<p>{WHOLE}</p>") is False
    said = json.dumps(WHOLE, ensure_ascii=False)
    assert fits(Grammar("structural_tag", both), f"{said}<p>{WHOLE}</p>")
    assert '"grammars"' in to_llguidance(grammar)
