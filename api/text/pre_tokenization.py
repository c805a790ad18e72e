"""Pre-tokenization patterns: how byte-level BPE tokenizers split a text before merging.

Each known tokenizer is recognised by the text of its patterns, and has one pattern for
tiktoken. The two split alike where both libraries classify letters, digits and spaces alike.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any
from unicodedata import is_normalized, ucd_3_2_0

GPT_2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"

SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_3 = SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + REST
QWEN_2 = LLAMA_3.replace("{1,3}", "")

HIGH, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASES = [rf"[^\r\n\p{{L}}\p{{N}}]?{HIGH}{some}" for some in (f"*{LOW}+", f"+{LOW}*")]
SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + REST
NEMO = "|".join([*CASES, r"\p{N}"]) + SIGNS
GPT_OSS = "|".join([*(f"{one}{SHORT}?" for one in CASES), r"\p{N}{1,3}"]) + SIGNS

EAST = "一-龥\u3040-ゟ\u30a0-ヿ"
ASCII = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
DEEPSEEK_3 = (  # applied one after the other, each to what the previous ones left
    r"\p{N}{1,3}",
    f"[{EAST}]+",
    (ASCII + r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*" + REST).replace(
        r"\r\n", "\r\n"
    ),
)
DEEPSEEK_3_AT_ONCE = (  # the same in one: what the first two split off ends the text around it
    r"\p{N}{1,3}"
    rf"|[[{EAST}]&&[\p{{L}}\p{{M}}]]+|[[{EAST}]&&[\p{{P}}\p{{S}}]]+|{ASCII}"
    rf"|[^\r\n\p{{L}}\p{{P}}\p{{S}}{EAST}]?[[\p{{L}}\p{{M}}]--[{EAST}]]+"
    rf"| ?[[\p{{P}}\p{{S}}]--[{EAST}]]+[\r\n]*|\s*[\r\n]+|\s+(?![^\s\p{{N}}{EAST}])|\s+"
    rf"|(?:[^\s\p{{L}}\p{{M}}\p{{P}}\p{{S}}\p{{N}}{EAST}](?![[\p{{L}}\p{{M}}]--[{EAST}]]))+"
)
COMBINED_PATTERNS: dict[tuple[str, ...], str] = {
    **{(one,): one for one in (LLAMA_3, QWEN_2, NEMO, GPT_OSS)},
    DEEPSEEK_3: DEEPSEEK_3_AT_ONCE,
}
ISOLATED = {("Isolated", False)}
WITHOUT_THE_REST = {("Removed", True)}  # the same, as the first four patterns leave nothing

UNLIKE = "\u017f"  # the long s, which one library treats as a case variant of s
PICTURES = ((0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F900, 0x1F9FF))
BASIC = range(0x10000)


def pattern_of(said: Any) -> str | None:  # noqa: ANN401
    """The tiktoken pattern of a pre-tokenizer; None: not one that is known here."""
    match said:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return GPT_2
        case {
            "type": "Sequence",
            "pretokenizers": [
                *splits,
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return _combined_pattern(splits)
    return None


def _combined_pattern(splits: Sequence[Mapping[str, Any]]) -> str | None:
    if any(one["type"] != "Split" for one in splits):
        return None
    left = {(one["behavior"], one["invert"]) for one in splits}
    if left != ISOLATED and (left != WITHOUT_THE_REST or len(splits) > 1):
        return None
    return COMBINED_PATTERNS.get(tuple(one["pattern"].get("Regex") for one in splits))


@cache
def unsure_letter() -> Callable[[str], object]:
    """A search for characters that the libraries may classify differently.

    Those of Unicode 3.2 (2002) are the same to all, and so are emoji, which are neither
    letters nor digits in any version.
    """
    runs = groupby(BASIC, lambda code: ucd_3_2_0.category(chr(code)) not in ("Cn", "Cs"))
    known = [[*codes] for are_known, codes in runs if are_known]
    spans = [*((codes[0], codes[-1]) for codes in known), *PICTURES]
    letters = "".join(f"{re.escape(chr(a))}-{re.escape(chr(b))}" for a, b in spans)
    return re.compile(f"[^{letters}]|{UNLIKE}").search


def is_cut_alike(text: str, *, normalized: bool) -> bool:
    """Whether both libraries split the text alike; `normalized`: one normalizes it to NFC."""
    if text.isascii():
        return True
    return not unsure_letter()(text) and (not normalized or is_normalized("NFC", text))
