"""Docstrings name classes that exist."""

import re
from pathlib import Path

from tests.house.test_house import ROOMS

ROOT = Path(__file__).parents[2]
DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
CLASS = re.compile(r"\b[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+\b")
NOT_OURS = {
    *("DeepSeek", "FlashAttention", "FunctionCalling", "FunctionGemma", "LongCat", "MiniMax"),
    *("LoraConfig", "ModelOpt", "MurmurHash3", "NaN", "NixlPushConnector", "RoFormer"),
    *("SubscribeKvEvents", "WriteTransport", "XpYd"),
}


def test_classes_that_docstrings_name_exist() -> None:
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    code = "\n".join(DOCSTRING.sub("", text) for text in texts.values())
    known = {*NOT_OURS, *CLASS.findall(code)}
    named = {
        (path, name)
        for path, text in texts.items()
        for said in DOCSTRING.findall(text)
        for name in CLASS.findall(said)
    }
    assert not [one for one in named if known.isdisjoint({one[1], one[1].removesuffix("s")})]
