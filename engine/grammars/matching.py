"""The state of one answer in its grammar, and the tokens that may come next.

The grammar decides where an answer may end:

- An end token is allowed exactly where the grammar may end. A model's own end token that the
  request ignores is allowed only where nothing else is: then the answer is complete, and ends.
- A text token that the client named as a stop token is allowed inside the grammar only where
  nothing else is.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
from llguidance import LLMatcher
from torch import Tensor

from engine.errors import GrammarRefused
from engine.grammars.vocabulary import GrammarVocabulary, TokenSet

USED_UP = "lexer error"  # too many lexer states, or expressions in them


@dataclass(frozen=True, slots=True)
class CompiledGrammar:
    """A matcher at the start of a grammar, to be copied; and all tokens that it can ever allow.

    These are the text tokens, and the special tokens that the grammar names.
    """

    matcher: LLMatcher
    allowed_tokens: TokenSet


class GrammarMatcher:
    """A Matcher over llguidance's, with constant cost for each token.

    `ends` are the tokens that end this answer. A matcher that fails, by too much work or by
    a token that the grammar does not allow, never recovers: it then allows only end tokens.

    Copies of an LLMatcher share their lexer's states, and the limit on these. If other copies
    have used it up, `anew` makes a fresh LLMatcher, and the answer is replayed to it.
    """

    def __init__(
        self,
        grammar: CompiledGrammar,
        vocabulary: GrammarVocabulary,
        ends: frozenset[int],
        anew: Callable[[], LLMatcher],
    ) -> None:
        self._matcher = grammar.matcher.deep_copy()
        self._writes = grammar.allowed_tokens
        self._anew = anew
        self._said = list[int]()
        self._vocabulary = vocabulary
        self._ends = ends
        self._end_words = vocabulary.token_set(ends)
        self._scratch = np.zeros(-(-vocabulary.tokenizer.vocab_size // 32), np.int32)
        self._ended = False
        self.failure: str | None = None

    @property
    def may_end(self) -> bool:
        """See Matcher."""
        return self._ended or self._matcher.is_accepting()

    def begin(self) -> str | None:
        """Compute the first mask; the failure, if not even a first token is possible."""
        self._allowed(drafting=False)
        return self.failure

    def advance(self, tokens: Seq[int]) -> None:
        """See Matcher."""
        for token in tokens:
            if self._ended or self.failure:
                return
            if self._is_end(token):
                self._ended = True
            elif self._matcher.consume_token(token) or self._renewed(token):
                self._said.append(token)
            else:
                self.failure = self._matcher.get_error() or f"token {token} does not fit"

    def fill_bitmask(self, drafted: Seq[int], bits: Tensor, row: int) -> None:
        """See Matcher."""
        words: TokenSet = bits[row].numpy()
        taken = self._draft(drafted)
        if taken == len(drafted):
            words[:] = self._allowed(drafting=bool(drafted))
        else:
            words[:] = -1  # nobody looks behind a draft that is not allowed
        if taken and not self._matcher.rollback(taken):
            self._restarted()  # what failed behind a draft may never come

    def _draft(self, drafted: Seq[int]) -> int:
        """Consume `drafted`; returns how many of these the grammar accepts."""
        if self._ended or self.failure or any(self._is_end(token) for token in drafted):
            return 0
        return self._matcher.try_consume_tokens(list(drafted)) if drafted else 0

    def _allowed(self, *, drafting: bool) -> TokenSet:
        if self._ended or self.failure:
            return self._only_ends()
        text = self._text()
        if text is None and not drafting and self._renewed():
            text = self._text()
        if text is None:
            return self._stuck(self._matcher.get_error(), drafting=drafting)
        inside = text & ~self._end_words
        if self._matcher.is_accepting():
            inside |= self._end_words
        if inside.any():
            return inside
        named = text & self._end_words
        if named.any():
            return named
        if self._matcher.is_accepting():
            return self._only_ends()
        return self._stuck("no token of this model goes on from here", drafting=drafting)

    def _only_ends(self) -> TokenSet:
        return self._vocabulary.token_set(self._vocabulary.eos) | self._end_words

    def _stuck(self, failure: str, *, drafting: bool) -> TokenSet:
        """Allow only end tokens. Behind drafts this is not a failure yet: they may be rejected,
        and the next step decides.
        """
        if not drafting:
            self.failure = failure
        return self._only_ends()

    def _text(self) -> TokenSet | None:
        """The tokens that the grammar accepts next, without end tokens; None if it fails."""
        scratch = self._scratch
        self._matcher.unsafe_compute_mask_ptr(scratch.ctypes.data, scratch.nbytes)
        if self._matcher.is_error():
            return None
        allowed = self._writes.copy()
        shared = min(len(allowed), len(scratch))
        allowed[:shared] &= scratch[:shared]
        allowed[shared:] = 0
        return allowed

    def _renewed(self, *more: int) -> bool:
        """If lexer states ran out: whether a fresh matcher accepts the answer and `more`."""
        return USED_UP in self._matcher.get_error() and self._restarted(*more)

    def _restarted(self, *more: int) -> bool:
        try:
            self._matcher = self._anew()
        except GrammarRefused:
            return False
        return self._matcher.consume_tokens([*self._said, *more])

    def _is_end(self, token: int) -> bool:
        return token in self._ends or token in self._vocabulary.eos
