"""Grammars of one engine: compiled beside the batch, kept by their text.

llguidance lets Python run on while it compiles, so a thread is enough. The same text is
compiled once, however many requests bring it; each gets a copy of the matcher, which costs
some ten microseconds.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from llguidance import LLMatcher

from engine.errors import GrammarRefused
from engine.grammars.matching import Compiled, GrammarMask
from engine.grammars.sources import limits, reason, to_llguidance
from engine.grammars.vocabulary import Vocabulary, load_vocabulary
from engine.request import Grammar

REMEMBERED = 64
PATIENCE_S = 10.0  # the door has refused what takes a tenth of that


@dataclass(slots=True)
class _Compiling:
    """Nobody waits for it after `until`; `fetched`: somebody knows that it is done."""

    outcome: "Future[Compiled | GrammarRefused]"
    until: float
    fetched: bool = False


@dataclass(slots=True)
class GrammarBook:
    """Every grammar that was asked for lately, compiled or on its way.

    What somebody may still wait for is not forgotten, or it would be begun again and again.
    Without a vocabulary every grammar is refused with `missing`. The engine's thread alone
    calls; a failed compilation is an answer like any other.
    """

    vocabulary: Vocabulary | None
    missing: str = ""
    _known: OrderedDict[Grammar, _Compiling] = field(default_factory=OrderedDict)

    def ready(self, grammar: Grammar) -> bool:
        """Whether `mask` answers at once; where not, work on it has begun."""
        if self.vocabulary is None:
            return True
        one = self._compiling(grammar, self.vocabulary)
        one.fetched = one.fetched or one.outcome.done() or monotonic() > one.until
        return one.fetched

    def mask(self, grammar: Grammar, ends: frozenset[int]) -> GrammarMask:
        """At the start of an answer that `ends` end; raises GrammarRefused."""
        vocabulary = self.vocabulary
        if vocabulary is None:
            raise GrammarRefused(self.missing)
        if not any(end < vocabulary.size for end in ends.union(vocabulary.eos)):
            raise GrammarRefused("a grammar needs an end token, and the model has none")
        begun = self._compiled(grammar, vocabulary)

        def anew() -> LLMatcher:
            self._known.pop(grammar, None)
            return self._compiled(grammar, vocabulary).matcher.deep_copy()

        return GrammarMask(begun, vocabulary, ends, anew)

    def _compiled(self, grammar: Grammar, vocabulary: Vocabulary) -> Compiled:
        one = self._compiling(grammar, vocabulary)
        one.fetched = True
        try:
            outcome = one.outcome.result(max(0.0, one.until - monotonic()))
        except TimeoutError as error:
            raise GrammarRefused(f"{grammar.kind} takes too long to compile") from error
        if isinstance(outcome, GrammarRefused):
            raise GrammarRefused(str(outcome))
        return outcome

    def _compiling(self, grammar: Grammar, vocabulary: Vocabulary) -> _Compiling:
        if grammar not in self._known:
            outcome = _start(grammar, vocabulary)
            self._forget_some()
            self._known[grammar] = _Compiling(outcome, monotonic() + PATIENCE_S)
        self._known.move_to_end(grammar)
        return self._known[grammar]

    def _forget_some(self) -> None:
        """The oldest, of those that nobody waits for."""
        now, known = monotonic(), self._known.items()
        idle = [name for name, one in known if one.fetched or now > one.until]
        for grammar in idle[:-REMEMBERED]:
            del self._known[grammar]


def load_grammars(folder: Path, size: int, eos: tuple[int, ...]) -> GrammarBook:
    """For a checkpoint whose model has `size` logits; never fails, but may refuse them all."""
    try:
        return GrammarBook(load_vocabulary(folder, size, eos))
    except GrammarRefused as error:
        return GrammarBook(None, str(error))


def compiled(grammar: Grammar, vocabulary: Vocabulary) -> Compiled:
    """Raises GrammarRefused; also for what this vocabulary cannot begin to write."""
    named = set[int]()

    def find(text: str) -> int | None:
        if (token := vocabulary.special.get(text)) is not None:
            named.add(token)
        return token

    try:
        written = to_llguidance(grammar, find)
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"{grammar.kind}: {reason(str(error))}") from error
    matcher = LLMatcher(vocabulary.tokenizer, written, log_level=0, limits=limits())
    if matcher.is_error():
        raise GrammarRefused(f"{grammar.kind}: {reason(matcher.get_error())}")
    begun = Compiled(matcher, vocabulary.text | vocabulary.words(named))
    if failure := GrammarMask(begun, vocabulary, frozenset(), matcher.deep_copy).begin():
        raise GrammarRefused(f"{grammar.kind}: {reason(failure)}")
    return begun


def _start(grammar: Grammar, vocabulary: Vocabulary) -> "Future[Compiled | GrammarRefused]":
    """In a thread that nobody waits for when the process ends."""
    outcome: Future[Compiled | GrammarRefused] = Future()

    def work() -> None:
        try:
            outcome.set_result(compiled(grammar, vocabulary))
        except GrammarRefused as refusal:
            outcome.set_result(refusal)
        finally:
            if not outcome.done():  # an error of ours must not keep anybody waiting
                outcome.set_result(GrammarRefused(f"{grammar.kind} cannot be compiled"))

    threading.Thread(target=work, name="grammar", daemon=True).start()
    return outcome
