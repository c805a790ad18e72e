"""Masks against the obvious: a token may come if a text of the language begins so."""

import json
import random
import re
import threading
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from time import monotonic
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel

from engine.errors import GrammarRefused
from engine.grammars.compiling import PATIENCE_S, GrammarCache, load_grammars
from engine.grammars.matching import GrammarMatcher
from engine.grammars.vocabulary import GrammarVocabulary, token_set_of
from engine.request import Grammar
from tests.fakes.checkpoints import VOCABULARY, write_tokenizer
from tests.fakes.hostile_grammars import REFUSED

END, SIZE = 0, VOCABULARY + 40  # some logits are nobody's
ENDS = frozenset([END])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def book(folder: Path) -> GrammarCache:
    return load_grammars(folder, SIZE, (END,))


@pytest.fixture(scope="module")
def texts(folder: Path) -> dict[int, str]:
    """Of the tokens that are text, and of more than half a character."""
    tokenizer, decoder = Tokenizer.from_file(str(folder / "tokenizer.json")), ByteLevel()
    special = tokenizer.get_added_tokens_decoder()
    written = {
        token: decoder.decode([said])
        for said, token in tokenizer.get_vocab().items()
        if token not in special
    }
    return {token: text for token, text in written.items() if "\ufffd" not in text}


def allowed(matcher: GrammarMatcher, drafted: Sequence[int] = ()) -> set[int]:
    words = torch.zeros((2, -(-SIZE // 32)), dtype=torch.int32)
    matcher.fill_bitmask(drafted, words, 1)
    assert not words[0].any()
    bits = np.unpackbits(words[1].numpy().view(np.uint8), bitorder="little")
    return set(bits.nonzero()[0].tolist())


def language(pattern: str, letters: str, longest: int) -> set[str]:
    texts = ("".join(some) for n in range(longest + 1) for some in product(letters, repeat=n))
    return {text for text in texts if re.fullmatch(pattern, text)}


def balanced(depth: int) -> set[str]:
    return {"(" * n + "x" + ")" * n for n in range(depth)}


LANGUAGES = {
    "regex": (Grammar("regex", "(ab|c)*d?"), language("(ab|c)*d?", "abcd", 7), 5),
    "overlap": (Grammar("regex", "[otw]*two"), language("[otw]*two", "otw", 8), 5),
    "choice": (Grammar("choice", '["then", "the", "dog", ""]'), {"then", "the", "dog", ""}, 9),
    "ebnf": (Grammar("ebnf", 'root ::= "(" root ")" | "x"'), balanced(12), 5),
    "lark": (Grammar("ebnf", 'start: "a" ("b" | "th" "e")'), {"ab", "athe"}, 9),
}


@pytest.mark.parametrize("name", LANGUAGES)
@pytest.mark.parametrize("seed", range(3))
def test_a_mask_is_what_begins_a_text_of_the_language(
    book: GrammarCache, texts: dict[int, str], name: str, seed: int
) -> None:
    grammar, whole, sure = LANGUAGES[name]
    begun = {text[:n] for text in whole for n in range(len(text) + 1)}
    matcher, said, chance = book.matcher(grammar, ENDS), "", random.Random(seed)
    while True:
        short = {t for t, text in texts.items() if len(said + text) <= sure}
        ways = {t for t in short if said + texts[t] in begun}
        here = allowed(matcher)
        forced = len(here) == 1 and here < ways  # only one text can follow: its usual token
        assert here & short == ways or forced
        assert (END in here) == (said in whole)
        steps = sorted(ways & here)
        if not steps:
            break
        token = chance.choice(steps)
        matcher.advance([token])
        said += texts[token]
    assert matcher.failure is None


def test_special_tokens_and_logits_of_nobody_never_come(book: GrammarCache) -> None:
    for grammar in (Grammar("regex", "(?s:.*)"), Grammar("ebnf", "start: T\nT: ~/x/")):
        here = allowed(book.matcher(grammar, ENDS))
        assert len(here) > 300
        assert here.isdisjoint({1, 2, *range(VOCABULARY, SIZE)})
        assert END in here


def tokens_of(texts: dict[int, str], *said: str) -> list[int]:
    names = {text: token for token, text in texts.items()}
    return [names[one] for one in said]


def test_an_end_comes_exactly_where_the_grammar_may_end(
    book: GrammarCache, texts: dict[int, str]
) -> None:
    a, b = tokens_of(texts, "a", "b")
    matcher = book.matcher(Grammar("regex", "ab?"), frozenset([END, 2, 9]))
    assert allowed(matcher) == {a}
    matcher.advance([a])
    assert matcher.may_end
    assert allowed(matcher) == {b, END, 2, 9}
    over = book.matcher(Grammar("regex", "ab?"), frozenset([END, 2, 9]))
    over.advance([a, 2])
    assert allowed(over) == {END, 2, 9}
    matcher.advance([b])
    assert allowed(matcher) == {END, 2, 9}


def test_an_end_that_is_ignored_comes_only_where_nothing_else_can(
    book: GrammarCache, texts: dict[int, str]
) -> None:
    a, b = tokens_of(texts, "a", "b")
    matcher = book.matcher(Grammar("regex", "ab?"), frozenset())
    matcher.advance([a])
    assert allowed(matcher) == {b}
    matcher.advance([b])
    assert allowed(matcher) == {END}


def test_a_text_that_ends_comes_inside_only_where_nothing_else_can(
    book: GrammarCache, texts: dict[int, str]
) -> None:
    a, b, c = tokens_of(texts, "a", "b", "c")
    matcher = book.matcher(Grammar("regex", "[ab]c"), frozenset([END, a, c]))
    assert allowed(matcher) == {b}
    matcher.advance([b])
    assert allowed(matcher) == {c}


def test_rows_behind_drafts_are_rows_one_by_one(
    book: GrammarCache, texts: dict[int, str]
) -> None:
    a, b, c, d = tokens_of(texts, "a", "b", "c", "d")
    grammar = Grammar("regex", "(ab|c)*d?")
    drafts, matcher, slow = (
        [a, b, c, d],
        book.matcher(grammar, ENDS),
        book.matcher(grammar, ENDS),
    )
    for count in range(len(drafts) + 1):
        assert allowed(matcher, drafts[:count]) == allowed(slow)
        slow.advance(drafts[count : count + 1])
    allowed(matcher, [a, d, d])  # not allowed: anything will do
    allowed(matcher, [a, END, b])
    assert allowed(matcher) == allowed(book.matcher(grammar, ENDS))
    assert matcher.failure is None


def test_a_mask_is_rebuilt_from_the_answer_so_far(
    book: GrammarCache, texts: dict[int, str]
) -> None:
    said = tokens_of(texts, "a", "b", "c", "a")
    grammar = Grammar("regex", "(ab|c)*d?")
    grown, rebuilt = book.matcher(grammar, ENDS), book.matcher(grammar, ENDS)
    for token in said:
        allowed(grown)
        grown.advance([token])
    rebuilt.advance(said)
    assert allowed(grown) == allowed(rebuilt) == set(tokens_of(texts, "b"))


def test_what_does_not_fit_is_a_failure_and_only_an_end_is_left(
    book: GrammarCache, texts: dict[int, str]
) -> None:
    matcher = book.matcher(Grammar("regex", "a+"), ENDS)
    matcher.advance(tokens_of(texts, "a", "b"))
    assert matcher.failure
    assert not matcher.may_end or allowed(matcher) == {END}
    dead = book.matcher(Grammar("ebnf", 'start: "a" T\nT: /[^\\x00-\\U0010FFFF]/'), ENDS)
    dead.advance(tokens_of(texts, "a"))
    assert allowed(dead) == {END}
    assert dead.failure


def test_states_that_others_used_up_are_not_missed(
    book: GrammarCache, texts: dict[int, str]
) -> None:
    letters, chance = tokens_of(texts, "a", "b"), random.Random(0)
    grammar = Grammar("regex", "(a|b)*a(a|b){60}")
    mine, other = book.matcher(grammar, ENDS), book.matcher(grammar, ENDS)
    mine.advance(letters)
    while other._matcher.consume_token(chance.choice(letters)):
        pass
    mine.advance(letters * 20)
    assert mine.failure is None
    assert allowed(mine) >= set(letters)
    assert allowed(book.matcher(grammar, ENDS)) >= set(letters)


@pytest.mark.parametrize("name", ["schema, itself", "regex, impossible", "ebnf, without end"])
def test_what_the_door_would_refuse_is_refused_here_too(book: GrammarCache, name: str) -> None:
    for _ in range(2):
        with pytest.raises(GrammarRefused):
            book.matcher(REFUSED[name], ENDS)


def test_a_vocabulary_that_cannot_write_a_grammar_refuses_it(
    book: GrammarCache, texts: dict[int, str]
) -> None:
    assert book.vocabulary is not None
    poor = token_set_of(tokens_of(texts, "a"), SIZE)
    whole = book.vocabulary
    vocabulary = GrammarVocabulary(whole.tokenizer, SIZE, poor, whole.eos)
    GrammarCache(vocabulary).matcher(Grammar("regex", "a|b"), ENDS)
    with pytest.raises(GrammarRefused, match="no token"):
        GrammarCache(vocabulary).matcher(Grammar("regex", "b"), ENDS)


def test_grammars_want_a_tokenizer_and_an_end(folder: Path, tmp_path: Path) -> None:
    grammar = Grammar("regex", "a")
    without = load_grammars(tmp_path, SIZE, (END,))
    assert without.ready(grammar)
    with pytest.raises(GrammarRefused, match="tokenizer"):
        without.matcher(grammar, ENDS)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(GrammarRefused, match="tokenizer"):
        load_grammars(tmp_path, SIZE, (END,)).matcher(grammar, ENDS)
    endless = load_grammars(folder, SIZE, ())
    endless.matcher(grammar, frozenset([5]))
    with pytest.raises(GrammarRefused, match="end token"):
        endless.matcher(grammar, frozenset())


def test_a_grammar_is_compiled_once_and_beside(book: GrammarCache) -> None:
    grammars = [Grammar("regex", f"a{{{count}}}") for count in range(1, 100)]
    began = [book.ready(grammar) for grammar in grammars]
    assert not all(began)
    assert all(book.matcher(grammar, ENDS).failure is None for grammar in grammars[-5:])
    assert all(book.ready(grammar) for grammar in grammars[-5:])


def test_where_no_thread_is_left_it_is_compiled_here(
    book: GrammarCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError))
    assert book.ready(Grammar("regex", "here"))


def test_what_somebody_waits_for_is_not_forgotten(folder: Path) -> None:
    book = load_grammars(folder, SIZE, (END,))
    wide = {f"p{index}": {"type": "string"} for index in range(40)}
    grammars = [
        Grammar(
            "json_schema", json.dumps({"type": "object", "title": f"{n}", "properties": wide})
        )
        for n in range(150)
    ]
    waited = [grammar for grammar in grammars if not book.ready(grammar)]
    assert len(waited) > 64
    begun = {grammar: book._known[grammar] for grammar in waited}
    for grammar, one in begun.items():
        one.outcome.result(10)
        assert book.ready(grammar)
        assert book._known[grammar] is one
    book.ready(Grammar("regex", "b"))
    assert len(book._known) <= 65


def test_an_error_of_ours_refuses_a_grammar_and_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = list[threading.ExceptHookArgs]()
    monkeypatch.setattr(threading, "excepthook", seen.append)
    broken = GrammarCache(GrammarVocabulary("none", SIZE, token_set_of([], SIZE), (END,)))  # type: ignore[arg-type]
    began = monotonic()
    with pytest.raises(GrammarRefused, match="regex cannot be compiled"):
        broken.matcher(Grammar("regex", "a"), ENDS)
    assert monotonic() - began < PATIENCE_S / 2
    for thread in threading.enumerate():
        if thread.name == "grammar":
            thread.join()
    assert len(seen) == 1
