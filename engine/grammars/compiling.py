"""A cache of an engine's compiled grammars; they are compiled in threads beside the batch.

llguidance releases the GIL while it compiles, so a thread is enough. A grammar's text is
compiled once, however many requests use it; each request gets a copy of the matcher, which
costs some ten microseconds.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from llguidance import LLMatcher

from engine.errors import GrammarRefused, reason
from engine.grammars.explaining import reason_of, refusal
from engine.grammars.matching import CompiledGrammar, GrammarMatcher
from engine.grammars.sources import limits, to_llguidance
from engine.grammars.vocabulary import GrammarVocabulary, load_vocabulary
from engine.request import Grammar

REMEMBERED = 64
PATIENCE_S = 10.0  # the HTTP server has refused grammars that take a tenth of that


@dataclass(slots=True)
class _PendingCompile:
    """A compilation under way, or its result.

    Requests wait for it up to the time `until`. `fetched`: a request was told that it is done
    or late, so that it may be evicted.
    """

    outcome: "Future[CompiledGrammar | GrammarRefused]"
    until: float
    fetched: bool = False


@dataclass(slots=True)
class GrammarCache:
    """Grammars of recent requests, compiled or being compiled.

    A grammar that a request may still wait for is not evicted, or it would be compiled again
    and again. Without a vocabulary every grammar is refused, with the reason `missing`. Only
    the engine's thread may call it. A refusal is cached like any other result.
    """

    vocabulary: GrammarVocabulary | None
    missing: str = ""
    _known: OrderedDict[Grammar, _PendingCompile] = field(default_factory=OrderedDict)

    def ready(self, grammar: Grammar) -> bool:
        """See MatcherFactory."""
        if self.vocabulary is None:
            return True
        one = self._compiling(grammar, self.vocabulary)
        one.fetched = one.fetched or one.outcome.done() or monotonic() > one.until
        return one.fetched

    def matcher(self, grammar: Grammar, ends: frozenset[int]) -> GrammarMatcher:
        """See MatcherFactory."""
        vocabulary = self.vocabulary
        if vocabulary is None:
            raise GrammarRefused(self.missing)
        if not any(end < vocabulary.size for end in ends.union(vocabulary.eos)):
            raise GrammarRefused("a grammar needs an end token, and the model has none")
        begun = self._compiled(grammar, vocabulary)

        def anew() -> LLMatcher:
            self._known.pop(grammar, None)
            return self._compiled(grammar, vocabulary).matcher.deep_copy()

        return GrammarMatcher(begun, vocabulary, ends, anew)

    def _compiled(self, grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
        one = self._compiling(grammar, vocabulary)
        one.fetched = True
        try:
            outcome = one.outcome.result(max(0.0, one.until - monotonic()))
        except TimeoutError as error:
            raise GrammarRefused(f"{grammar.kind} takes too long to compile") from error
        if isinstance(outcome, GrammarRefused):
            raise GrammarRefused(str(outcome))
        return outcome

    def _compiling(self, grammar: Grammar, vocabulary: GrammarVocabulary) -> _PendingCompile:
        if grammar not in self._known:
            outcome = _start(grammar, vocabulary)
            self._evict()
            self._known[grammar] = _PendingCompile(outcome, monotonic() + PATIENCE_S)
        self._known.move_to_end(grammar)
        return self._known[grammar]

    def _evict(self) -> None:
        """Drop the least recently used, of those that no request waits for."""
        now, known = monotonic(), self._known.items()
        idle = [name for name, one in known if one.fetched or now > one.until]
        for grammar in idle[:-REMEMBERED]:
            del self._known[grammar]


def load_grammars(folder: Path, size: int, eos: tuple[int, ...]) -> GrammarCache:
    """The cache for a checkpoint whose model has `size` logits.

    Never fails: a checkpoint without a usable tokenizer gets a cache that refuses all grammars.
    """
    try:
        return GrammarCache(load_vocabulary(folder, size, eos))
    except GrammarRefused as error:
        return GrammarCache(None, str(error))


def compiled(grammar: Grammar, vocabulary: GrammarVocabulary) -> CompiledGrammar:
    """Compile `grammar`; raises GrammarRefused, also if no token can begin an answer."""
    named = set[int]()

    def find(text: str) -> int | None:
        if (token := vocabulary.special.get(text)) is not None:
            named.add(token)
        return token

    try:
        written = to_llguidance(grammar, find)
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"{grammar.kind}: {reason_of(error)}") from error
    matcher = LLMatcher(vocabulary.tokenizer, written, log_level=0, limits=limits())
    if matcher.is_error():
        raise GrammarRefused(refusal(grammar, matcher.get_error(), limits()))
    begun = CompiledGrammar(matcher, vocabulary.text | vocabulary.token_set(named))
    if failure := GrammarMatcher(begun, vocabulary, frozenset(), matcher.deep_copy).begin():
        raise GrammarRefused(f"{grammar.kind}: {reason(failure)}")
    return begun


def _start(
    grammar: Grammar, vocabulary: GrammarVocabulary
) -> "Future[CompiledGrammar | GrammarRefused]":
    """Compile in a daemon thread: the process may end meanwhile. Here, if no thread is left
    for this process: the batch waits for it then.
    """
    outcome: Future[CompiledGrammar | GrammarRefused] = Future()

    def work() -> None:
        try:
            outcome.set_result(compiled(grammar, vocabulary))
        except GrammarRefused as refusal:
            outcome.set_result(refusal)
        finally:
            if not outcome.done():  # an unexpected error must not keep requests waiting
                outcome.set_result(GrammarRefused(f"{grammar.kind} cannot be compiled"))

    try:
        threading.Thread(target=work, name="grammar", daemon=True).start()
    except RuntimeError:
        work()
    return outcome
