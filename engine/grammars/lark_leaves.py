"""Literals and regexes of Lark terminals, rewritten for use inside a JSON string. Pure."""

import json
import re
from collections.abc import Mapping

from engine.grammars.quoted_regex import ANY_LETTER, quoted_regex, quoted_text

STRING = r'"(?:\\(?:["\\/bfnrt]|u[a-fA-F0-9]{4})|[^"\\\x00-\x1f\x7f])*"'
ENDS = re.compile(rf"({STRING})\s*\.\.\s*({STRING})")
ANYTHING, ANY_QUOTED = "/(?s:.*)/", f"/{ANY_LETTER}*/"
COMMON: Mapping[str, str] = {
    "ESCAPED_STRING": r"\"(?:[^\"\\]|\\.)*\"",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"\/\/[^\n]*",
    "C_COMMENT": r"\/\*[^*]*\*+(?:[^\/*][^*]*\*+)*\/",
    "SQL_COMMENT": r"--[^\n]*",
}
"""Terminals of Lark's library that can match characters that JSON escapes."""


def quoted_leaf(kind: str, said: str) -> str:
    """Rewrite a regex, a character range or a string; raises GrammarRefused."""
    if kind == "regex":
        pattern, _, flags = said[1:].rpartition("/")
        return f"/{quoted_regex(pattern, flags)}/{flags}"
    if kind == "range" and (ends := ENDS.fullmatch(said)):
        first, last = (_letters(json.loads(one)) for one in ends.groups())
        return f"/{quoted_regex(f'[{first}-{last}]')}/"
    if said.endswith("i"):
        return f"/{quoted_regex(_letters(json.loads(said[:-1])), 'i')}/i"
    text = json.dumps(quoted_text(json.loads(said)), ensure_ascii=False)
    return text.replace("\x7f", r"\u007f")


def _letters(text: str) -> str:
    """A text escaped for a regular expression."""
    return "".join(rf"\x{{{ord(one):x}}}" for one in text)
