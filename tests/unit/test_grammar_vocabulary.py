"""What tokens are to grammars: those that a model has for its marks are text, as it reads."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.grammars.compiling import load_grammars
from engine.grammars.matching import GrammarMatcher
from engine.request import Grammar

LETTERS = ["!", *sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"!"})]
MERGES = [("h", "e"), ("l", "l"), ("he", "ll")]
WORDS = [*LETTERS, *(left + right for left, right in MERGES)]
CALL, SECRET, BLANKS, END = range(len(WORDS), len(WORDS) + 4)
SIZE = END + 1


def byte_level() -> Tokenizer:
    vocabulary = {word: token for token, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.BPE(vocabulary, MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False)])
    tokenizer.add_special_tokens(["<|secret|>"])
    tokenizer.add_tokens([AddedToken("   ", special=False)])
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tokenizer")
    byte_level().save(str(made / "tokenizer.json"))
    return made


def begun(folder: Path, grammar: Grammar, *, eos: tuple[int, ...] = (END,)) -> GrammarMatcher:
    return load_grammars(folder, SIZE, eos).matcher(grammar, frozenset([END]))


def next_ones(matcher: GrammarMatcher, said: Sequence[int] = ()) -> set[int]:
    """What may come once these did."""
    matcher.advance(said)
    assert matcher.failure is None
    words = torch.zeros((1, -(-SIZE // 32)), dtype=torch.int32)
    matcher.fill_bitmask([], words, 0)
    bits = np.unpackbits(words[0].numpy().view(np.uint8), bitorder="little")
    return set(bits.nonzero()[0].tolist())


def test_a_mark_that_is_one_token_may_be_written(folder: Path) -> None:
    either = Grammar("regex", r"(<tool_call>|   |<\|secret\|>)x*")
    assert next_ones(begun(folder, either)) == {
        *(CALL, BLANKS),
        *map(LETTERS.index, "<\u0120"),
    }
    assert END in next_ones(begun(folder, either), [CALL])


def test_a_special_token_is_written_where_a_tag_names_it_and_nowhere_else(folder: Path) -> None:
    either = (
        '{"type": "structural_tag", "format": {"type": "or", "elements": ['
        '{"type": "const_string", "value": "he"}, {"type": "sequence", "elements": ['
        '{"type": "token", "token": "%s"}, {"type": "regex", "pattern": "(?s:.)!"}]}]}}'
    )
    matcher = begun(folder, Grammar("structural_tag", either % "<|secret|>"))
    he = {LETTERS.index("h"), WORDS.index("he")}
    assert next_ones(matcher) == {*he, SECRET}
    assert not {SECRET, END} & next_ones(matcher, [SECRET])
    spelt = begun(folder, Grammar("structural_tag", either % "<tool_call>"))
    assert next_ones(spelt) == {*he, CALL, LETTERS.index("<")}
    for unknown in ("</s>", "<|other|>"):
        matcher = begun(folder, Grammar("structural_tag", either % unknown))
        assert next_ones(matcher) == {*he, LETTERS.index("<")}


def test_free_text_may_end_with_a_special_token(folder: Path) -> None:
    quoted = (
        '{"type": "structural_tag", "format": {"type": "sequence", "elements": ['
        '{"type": "token", "token": "<|secret|>"}, {"type": "any_text"}, '
        '{"type": "token", "token": "<|secret|>"}, {"type": "const_string", "value": "!"}]}}'
    )
    matcher = begun(folder, Grammar("structural_tag", quoted))
    assert next_ones(matcher) == {SECRET}
    text = {*range(len(WORDS)), CALL, BLANKS}
    assert next_ones(matcher, [SECRET]) >= {SECRET, CALL, BLANKS, *map(LETTERS.index, "ab<!")}
    assert next_ones(matcher, [CALL, LETTERS.index("<")]) <= {*text, SECRET}
    assert next_ones(matcher, [SECRET]) == {LETTERS.index("!")}
    assert next_ones(matcher, [LETTERS.index("!")]) == {END}


def test_a_tag_begins_with_the_token_that_a_model_has_for_it(folder: Path) -> None:
    tag = (
        '{"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": '
        '["<tool_call>"], "tags": [{"type": "tag", "begin": "<tool_call>", "content": '
        '{"type": "json_schema", "json_schema": true}, "end": "!"}]}}'
    )
    matcher = begun(folder, Grammar("structural_tag", tag))
    assert CALL in next_ones(matcher)
    assert next_ones(matcher, [CALL]) < set(range(len(WORDS)))


@pytest.mark.parametrize("stops", ["true", "false"])
def test_a_trigger_may_be_a_special_token_or_be_spelt(folder: Path, stops: str) -> None:
    tag = (
        '{"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": '
        '["<|secret|>", "ab"], "stop_after_first": %s, "tags": [{"type": "tag", "begin": '
        '"<|secret|>h", "content": {"type": "regex", "pattern": "[el]+"}, "end": "!"}, '
        '{"type": "tag", "begin": "ab", "content": {"type": "sequence", "elements": []}, '
        '"end": "c"}]}}'
    )
    grammar = Grammar("structural_tag", tag % stops)
    h, e, bang = map(LETTERS.index, "he!")
    spelt = list(map(LETTERS.index, "x<|secret|>"))
    for before in ([], [CALL, BLANKS], [LETTERS.index("a")], spelt[:-1]):
        matcher = begun(folder, grammar)
        assert next_ones(matcher, before) >= {SECRET, END, h, CALL}
        assert next_ones(matcher, [SECRET]) <= {h, WORDS.index("he"), WORDS.index("hell")}
        assert END not in next_ones(matcher, [h, e])
        assert END in next_ones(matcher, [bang])
        assert (SECRET in next_ones(matcher)) == (stops == "false")
    matcher = begun(folder, grammar)
    assert next_ones(matcher, spelt) <= {h, WORDS.index("he"), WORDS.index("hell")}


def test_what_is_the_only_text_is_written_as_the_model_reads_it(folder: Path) -> None:
    matcher = begun(folder, Grammar("regex", "hello<tool_call>"))
    ids = byte_level().encode("hello<tool_call>").ids
    assert len(ids) == 3
    for token in ids:
        assert next_ones(matcher) == {token}
        matcher.advance([token])
    assert next_ones(matcher) == {END}


def test_where_a_model_has_no_end_no_letter_is_one(folder: Path) -> None:
    matcher = begun(folder, Grammar("regex", "ab!?"), eos=())
    a, b = map(LETTERS.index, "ab")
    assert next_ones(matcher, [a, b]) == {0, END}
    assert next_ones(matcher, [0]) == {END}
