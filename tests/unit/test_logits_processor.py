"""A processor by itself: tokens that complete bad words, failures of sequences, and ends."""

import math
import random
from collections import Counter

import pytest
import torch

from engine.request import Grammar, Sampling
from engine.sampling.changes import changes_of
from engine.sampling.logits_processor import NOTHING_LEFT, LogitsProcessor
from engine.sampling.sampler import Sampler, SamplerRow
from tests.fakes.sampling import Parities, Parity, comes_whole, sequence

VOCABULARY = 45
END = 7
NOTHING = Sampling(
    temperature=0, grammar=Grammar("regex", "1"), allowed_token_ids=(5,), bad_words=((4, 5),)
)


def some(chance: random.Random, most: int) -> tuple[int, ...]:
    """Few kinds of tokens, so that words and answers meet."""
    return tuple(chance.randrange(1, 3) for _ in range(chance.randrange(most + 1)))


def test_whatever_completes_a_bad_word_is_banned_once() -> None:
    """Words of all lengths at once, some of them twice, and ends that several words share."""
    chance, banned = random.Random(3), Counter[int]()
    for _ in range(400):
        words = tuple((*some(chance, 4), chance.randrange(1, 5)) for _ in range(8))
        seq = sequence(Sampling(bad_words=words), some(chance, 3), some(chance, 6))
        drafted = some(chance, 2)
        said = (*seq.tokens[len(seq.request.prompt) :], *drafted)
        want = {word[-1] for word in words if len(word) > 1 and comes_whole(word, said)}
        processor = LogitsProcessor.of(seq, VOCABULARY, None)
        assert sorted(processor.banned(seq, drafted).tolist()) == sorted(want)
        banned[len(want)] += 1
    assert min(banned[count] for count in range(4)) > 10


@pytest.mark.parametrize("may_end", [False, True])
@pytest.mark.parametrize("drafted", [(), (4,)])
def test_a_draft_that_leaves_nothing_is_no_failure(
    may_end: bool, drafted: tuple[int, ...]
) -> None:
    """It may be rejected yet."""
    grammars = Parities(VOCABULARY)
    sampler = Sampler(VOCABULARY, grammars)
    seq = sequence(NOTHING, answer=(3,), eos=frozenset({END}))
    sampler.check(seq)
    grammars.made[0].may_end = may_end
    row = SamplerRow(seq, drafted)
    assert sampler.sample(torch.zeros(1, VOCABULARY), [row]).tokens == [END]
    assert seq.failure == (None if may_end or drafted else NOTHING_LEFT)


def test_a_grammars_own_failure_is_the_sequences() -> None:
    """Also where nothing else is left."""
    for sampling in (Sampling(grammar=Grammar("regex", "1")), NOTHING):
        grammars = Parities(VOCABULARY)
        sampler = Sampler(VOCABULARY, grammars)
        seq = sequence(sampling, answer=(3,), eos=frozenset({END}))
        sampler.check(seq)
        grammars.made[0].failure, grammars.made[0].may_end = "stuck", False
        sampler.sample(torch.zeros(1, VOCABULARY), [SamplerRow(seq)])
        assert seq.failure == "stuck"


@pytest.mark.parametrize("ignored", [False, True])
def test_an_end_that_the_model_has_no_logit_for_is_not_forced(ignored: bool) -> None:
    """The next one is, and token 0 if there is none."""
    nothing = Sampling(allowed_token_ids=(5,), bad_words=((3, 5),), ignore_eos=ignored)
    for eos, token in (({END, VOCABULARY}, END), ({VOCABULARY, VOCABULARY + 9}, 0)):
        seq = sequence(nothing, answer=(3,), eos=frozenset(eos))
        row = SamplerRow(seq)
        assert Sampler(VOCABULARY).sample(torch.zeros(1, VOCABULARY), [row]).tokens == [token]


def test_what_is_forced_ends_this_answer_where_the_models_own_end_does_not() -> None:
    nothing = Sampling(
        allowed_token_ids=(5,), bad_words=((3, 5),), ignore_eos=True, stop_token_ids=(20, 9)
    )
    seq = sequence(nothing, answer=(3,), eos=frozenset({END}))
    logits = torch.zeros(1, VOCABULARY)
    assert Sampler(VOCABULARY).sample(logits, [SamplerRow(seq)]).tokens == [9]


class Ends(Parities):
    """Notes which tokens end the answers of its grammars."""

    ends: frozenset[int] | None = None

    def matcher(self, grammar: Grammar, ends: frozenset[int]) -> Parity:
        self.ends = ends
        return super().matcher(grammar, ends)


def test_a_grammar_is_told_what_ends_this_answer() -> None:
    """Stop tokens as well as the model's own; these alone where they are ignored."""
    for ignored, ends in ((False, frozenset({END, 9})), (True, frozenset({9}))):
        grammars = Ends(VOCABULARY)
        asked = Sampling(grammar=Grammar("regex", "1"), stop_token_ids=(9,), ignore_eos=ignored)
        Sampler(VOCABULARY, grammars).check(sequence(asked, eos=frozenset({END})))
        assert grammars.ends == ends


def test_a_token_that_is_biased_and_banned_is_told_to_a_device_once() -> None:
    """Kernels change the tokens of a row in any order."""
    seq = sequence(Sampling(logit_bias=((4, 5.0), (3, 1.0)), bad_words=((2, 3),)), answer=(2,))
    rows = Sampler(VOCABULARY).processed_rows([(6, SamplerRow(seq))])
    changes = changes_of(rows, VOCABULARY)
    assert changes is not None
    assert changes.headers.tolist() == [[6, 0, 2, 2]]
    assert dict(zip(changes.tokens, changes.values, strict=True)) == {4: 5.0, 3: -math.inf}


def test_penalties_without_a_token_are_told_to_a_device() -> None:
    """It may have drawn one that the host does not know yet."""
    rows = Sampler(VOCABULARY).processed_rows(
        [(6, SamplerRow(sequence(Sampling(presence_penalty=0.5))))]
    )
    changes = changes_of(rows, VOCABULARY)
    assert changes is not None
    assert changes.headers.tolist() == [[6, 0, 0, 0]]
    assert changes.factors.tolist() == [[1, 0, 0.5]]


def test_what_was_said_since_the_last_step_is_told_to_a_device() -> None:
    seq = sequence(Sampling(frequency_penalty=0.5))
    rows = Sampler(VOCABULARY).processed_rows([(0, SamplerRow(seq))])
    for told in ({}, {4: 1}, {4: 2, 9: 1}):
        changes = changes_of(rows, VOCABULARY)
        assert changes is not None
        assert dict(zip(changes.tokens, changes.values, strict=True)) == told
        seq.tokens += (4,) if not told else (9, 4)
