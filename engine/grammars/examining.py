"""The process behind a GrammarChecker: it reads grammars line by line and writes refusals.

`python -m engine.grammars.examining`; it ends when its standard input closes, or by an alarm if
a grammar takes far longer than the deadline and the parent is no longer there to kill it.
"""

import resource
import signal
import sys
from collections.abc import Sequence

import msgspec
import numpy as np
from llguidance import LLMatcher, LLTokenizer

from engine.errors import GrammarRefused
from engine.grammars.byte_tokens import END, byte_tokenizer
from engine.grammars.explaining import reason_of, refusal
from engine.grammars.sources import limits, to_llguidance
from engine.request import Grammar

MOST_MEMORY_BYTES = 4 << 30
LONGEST_CHECK_S = 3
TRIED = 8


def examine(grammar: Grammar, tokenizer: LLTokenizer) -> None:
    """Raises GrammarRefused unless a first token is possible, and one can follow it."""
    matcher = LLMatcher(tokenizer, _written(grammar), log_level=0, limits=limits())
    ways = _ways(matcher)
    for way in ways[:: max(1, len(ways) // TRIED)]:
        if way == END:
            return
        tried = matcher.deep_copy()
        if tried.consume_token(way) and len(_ways(tried)):
            return
        matcher = tried
    raise GrammarRefused(refusal(grammar, matcher.get_error(), limits()))


def _written(grammar: Grammar) -> str:
    try:
        return to_llguidance(grammar)
    except (ValueError, RecursionError) as error:
        raise GrammarRefused(f"{grammar.kind}: {reason_of(error)}") from error


def _ways(matcher: LLMatcher) -> Sequence[int]:
    """The tokens that may come next; empty after an error."""
    if matcher.is_error():
        return []
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    if matcher.is_error():
        return []
    ways: list[int] = np.unpackbits(mask, bitorder="little").nonzero()[0].tolist()
    return ways


def main() -> None:
    """Reply to each line with one, which is empty if the grammar can be served."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # a terminal's signals are for the parent
    tokenizer = byte_tokenizer()
    _say("")
    for line in sys.stdin.buffer:
        signal.alarm(LONGEST_CHECK_S)
        try:
            examine(msgspec.json.decode(line, type=Grammar), tokenizer)
            said = ""
        except GrammarRefused as error:
            said = str(error)
        signal.alarm(0)
        _say(said)


def _say(said: str) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
