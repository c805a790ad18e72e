r"""Regular expressions, rewritten to match their texts as escaped in a JSON string.

There the text `say "hi"` is `say \"hi\"`. A quote, a backslash and a control character have one
escape each; all others are unchanged. So parts that match one character are rewritten, and
everything around them, such as groups and repetitions, is kept.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from engine.errors import GrammarRefused
from engine.grammars.byte_tokens import END, byte_tokenizer

QUOTE, BACKSLASH, CONTROLS = 0x22, 0x5C, range(0x20)
ESCAPED = frozenset({*CONTROLS, QUOTE, BACKSLASH})
SHORT = {0x08: "b", 0x09: "t", 0x0A: "n", 0x0C: "f", 0x0D: "r", QUOTE: '"', BACKSLASH: "\\"}
PLAIN = r'[^"\\\x00-\x1f]'
ANY_LETTER = rf'(?:{PLAIN}|\\(?:["\\bfnrt]|u00(?:0[0-7bBeEfF]|1[0-9a-fA-F])))'
"""Matches any character."""
NAMED = {"a": 0x07, "f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}
KNOWN_SETS = 1024
NO_LETTER = -1
FOLDS, DOT_IS_ANY, CRLF, VERBOSE = "i", "s", "R", "x"
PART = re.compile(
    r"""\\(?:[xuU]\{(?P<braced>[0-9A-Fa-f]{1,8})\} | x(?P<two>[0-9A-Fa-f]{2})
    | u(?P<four>[0-9A-Fa-f]{4}) | U(?P<eight>[0-9A-Fa-f]{8})
    | (?P<group>[dDsSwW]|[pP](?:\{[^}]*\}|.)) | (?P<named>[afnrtv]) | (?P<other>.))
    | (?P<opens>\()(?:\?(?P<flags>[A-Za-z]*-?[A-Za-z]*)(?P<scope>[:)]))?
    | (?P<closes>\)) | (?P<dot>\.) | (?P<set>\[) | (?P<letter>[^\\])""",
    re.VERBOSE | re.DOTALL,
)
IN_SET = re.compile(r"\\.|\[:\^?[a-z]+:\]|(?P<opens>\[\^?-*\]?)|(?P<closes>\])|.", re.DOTALL)
Flags = frozenset[str]


def quoted_regex(pattern: str, flags: str = "") -> str:
    """Rewrite a regex in Rust's syntax, for the same `flags`; raises GrammarRefused."""
    return "".join(_Rewriter(pattern).parts(frozenset(flags)))


def quoted_text(text: str) -> str:
    """A text as it is in a JSON string, escaped for a regex."""
    return "".join(_escape(ord(one)) if ord(one) in ESCAPED else one for one in text)


def _escape(code: int) -> str:
    return f"\\{SHORT[code]}" if code in SHORT else f"\\u{code:04x}"


@dataclass(slots=True)
class _Rewriter:
    pattern: str
    at: int = 0
    _around: list[Flags] = field(default_factory=list)  # flags around the open groups

    def parts(self, flags: Flags) -> Iterator[str]:
        while self.at < len(self.pattern):
            if VERBOSE in flags:
                raise GrammarRefused("regex: the flag x is not supported within a JSON string")
            if (part := PART.match(self.pattern, self.at)) is None:
                raise GrammarRefused(f"regex: {self.pattern} ends in an escape")
            self.at = part.end()
            if part["opens"]:
                if part["scope"] != ")":
                    self._around.append(flags)
                flags = _with(flags, part["flags"] or "")
            elif part["closes"]:
                flags = self._around.pop() if self._around else flags
            yield self._one(part, flags)

    def _one(self, part: re.Match[str], flags: Flags) -> str:
        if part["dot"]:
            return _any_of(PLAIN, ESCAPED - _ends_of_lines(flags))
        if part["set"]:
            return self._any_in(self._set(part.start()), flags)
        if part["group"]:
            return self._any_in(f"[{part[0]}]", flags)
        code = _code_of(part)
        return part[0] if code not in ESCAPED else _any_of("", {code})

    def _any_in(self, letters: str, flags: Flags) -> str:
        escaped = _escaped_in(letters, "".join(sorted(flags)))
        return _any_of(f"[{letters}&&{PLAIN}]", escaped) if escaped else letters

    def _set(self, begin: int) -> str:
        """Rewrite the bracketed class that begins at `begin`; raises GrammarRefused."""
        depth, self.at = 0, begin
        while depth or self.at == begin:
            part = IN_SET.match(self.pattern, self.at)
            if part is None:
                raise GrammarRefused(f"regex: a bracket is not closed: {self.pattern}")
            self.at = part.end()
            depth += bool(part["opens"]) - bool(part["closes"])
        return self.pattern[begin : self.at]


def _code_of(part: re.Match[str]) -> int:
    """The code of a single character; -1 for regex syntax."""
    if digits := part["braced"] or part["two"] or part["four"] or part["eight"]:
        return int(digits, 16)
    if part["named"]:
        return NAMED[part["named"]]
    letter = part["other"] or part["letter"]
    return ord(letter) if letter else NO_LETTER


def _with(flags: Flags, said: str) -> Flags:
    """The flags of a group: letters that are set, and after a minus those that are cleared."""
    on, _, off = said.partition("-")
    return (flags | set(on)) - set(off)


def _ends_of_lines(flags: Flags) -> set[int]:
    """The characters that a dot does not match."""
    if DOT_IS_ANY in flags:
        return set()
    return {NAMED["n"], NAMED["r"]} if CRLF in flags else {NAMED["n"]}


def _any_of(plain: str, escaped: Collection[int]) -> str:
    """Match a character of `plain`, or an escape of `escaped`; case matters in escapes."""
    short = "".join(
        f"\\{one}" if one in '"\\' else one for c, one in SHORT.items() if c in escaped
    )
    ways = [f"[{short}]"] if short else []
    ways += [_by_code(code) for code in sorted(escaped) if code not in SHORT]
    ways = [*filter(None, [plain]), *([f"(?-i:\\\\(?:{'|'.join(ways)}))"] if ways else [])]
    return f"(?:{'|'.join(ways)})"


def _by_code(code: int) -> str:
    low = f"{code % 16:x}"
    return f"u00{code // 16}" + (low if low.isdigit() else f"[{low}{low.upper()}]")


@lru_cache(KNOWN_SETS)
def _escaped_in(one: str, flags: str) -> Collection[int]:
    """The characters of a set that JSON escapes, as llguidance reads the set; raises
    GrammarRefused.
    """
    pattern = f"(?{flags}:{one})" if flags else one
    return ESCAPED.intersection(_begins(f"start: /{pattern}/\n"))


def can_begin(lark: str) -> bool:
    """Whether a grammar has any text that is not empty; raises GrammarRefused."""
    return bool(_begins(lark))


def _begins(lark: str) -> Collection[int]:
    """The bytes with which a grammar's texts may begin; raises GrammarRefused."""
    matcher = LLMatcher(_bytes(), LLMatcher.grammar_from_lark(lark), log_level=0)
    if matcher.is_error():
        raise GrammarRefused(f"lark: {matcher.get_error()}")
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    if matcher.stop_reason().endswith("TooComplex"):  # its mask is invalid then
        raise GrammarRefused(f"lark: {matcher.get_error()}")
    bits: list[int] = np.unpackbits(mask, bitorder="little")[:END].nonzero()[0].tolist()
    return frozenset(bits)


@cache
def _bytes() -> LLTokenizer:
    return byte_tokenizer()
