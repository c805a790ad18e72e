"""Converts a client's grammar to llguidance's format, and limits its size. Torch-free.

What is accepted, by kind:

json_schema     a JSON Schema as JSON. A keyword that cannot be enforced is refused; a `format`
                that JSON Schema does not define is ignored. Little whitespace is allowed,
                unless `x-guidance`, llguidance's own key, has other options. For very large
                numbers see `engine/grammars/numbers.py`.
json_object     any JSON object; there is no source.
regex           the syntax of Rust's `regex` crate, for the whole answer: `^` and `$` are at
                both ends already. There are no look-arounds and no back-references.
ebnf            GBNF, as llama.cpp and vLLM write it (`root ::= ...`), or Lark as llguidance
                writes it (`start: ...`); see `engine/grammars/gbnf.py`.
choice          a JSON list of strings.
structural_tag  xgrammar's JSON, of both ages; see `engine/grammars/structural_tags.py`.
"""

import json
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher, LLParserLimits

from engine.errors import GrammarRefused
from engine.grammars.checking import too_long
from engine.grammars.exclusive_ways import with_exclusive_ways
from engine.grammars.explaining import TOO_DEEP, is_too_deep, reason_of
from engine.grammars.gbnf import ebnf_to_lark
from engine.grammars.lark import quoted, regex
from engine.grammars.numbers import with_exact_numbers
from engine.grammars.schemas import without_annotations
from engine.grammars.tag_writing import (
    OPTIONS,
    WHITESPACE,
    Find,
    no_token,
    structural_tag_to_grammar,
)
from engine.request import Grammar

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

MOST_CHOICES = 10_000
ANY_OBJECT = '{"type": "object"}'
LEXER_FUEL, STEP_FUEL, STEP_ITEMS = 500_000, 200_000, 50_000
MOST_STATES, LARGEST_GRAMMAR = 20_000, 200_000  # a state takes up to 2 kB


def limits() -> LLParserLimits:
    """Limits on a grammar's work, during compilation and at every step."""
    return LLParserLimits(
        initial_lexer_fuel=LEXER_FUEL,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=STEP_ITEMS,
        max_lexer_states=MOST_STATES,
        max_grammar_size=LARGEST_GRAMMAR,
        verbose_errors=False,
    )


def to_llguidance(grammar: Grammar, find: Find = no_token) -> str:
    """The grammar in LLMatcher's format, with the model's special tokens; raises GrammarRefused
    for invalid syntax.
    """
    source = grammar.source
    if why := too_long(grammar):
        raise GrammarRefused(why)
    if "\0" in source:
        raise GrammarRefused(f"{grammar.kind} has a null character")
    if grammar.kind == "structural_tag":
        return structural_tag_to_grammar(source, find)
    if grammar.kind == "json_object":
        return _json(ANY_OBJECT)
    if grammar.kind == "json_schema":
        return _json(source)
    return LLMatcher.grammar_from_lark(_lark(grammar))


def _json(source: str) -> str:
    schema = read_json(source, "json_schema")
    if isinstance(schema, bool):
        return LLMatcher.grammar_from_json_schema(source)
    if not isinstance(schema, dict):
        raise GrammarRefused("json_schema must be an object or a boolean")
    if is_too_deep(schema):
        raise GrammarRefused(f"json_schema: {TOO_DEEP}")
    plain = with_exact_numbers(with_exclusive_ways(without_annotations(schema)))
    if plain != schema:
        source = json.dumps(plain)
    if OPTIONS in schema:
        return LLMatcher.grammar_from_json_schema(source)
    style: JsonCompileOptions = {"whitespace_pattern": WHITESPACE}
    return LLMatcher.grammar_from_json_schema(source, defaults=style)


def _lark(grammar: Grammar) -> str:
    if grammar.kind == "ebnf":
        return ebnf_to_lark(grammar.source)
    answer = regex(grammar.source) if grammar.kind == "regex" else _choice(grammar.source)
    return f"start: ANSWER\nANSWER: {answer}\n"


def read_json(source: str, kind: str) -> Any:  # noqa: ANN401 - JSON of any shape
    """Parse JSON; raises GrammarRefused if it is invalid."""
    try:
        return json.loads(source)
    except RecursionError as error:
        raise GrammarRefused(f"{kind}: {TOO_DEEP}") from error
    except ValueError as error:
        raise GrammarRefused(f"{kind} is not valid JSON: {reason_of(error)}") from error


def _choice(source: str) -> str:
    choices = read_json(source, "choice")
    if not isinstance(choices, list) or not choices:
        raise GrammarRefused("choice must be a list of at least one string")
    if not all(isinstance(one, str) for one in choices):
        raise GrammarRefused("choice must have strings only")
    if len(choices) > MOST_CHOICES:
        raise GrammarRefused(f"choice has more than {MOST_CHOICES} strings")
    return " | ".join(map(quoted, choices))
