"""The forms in which models write calls, by name, and which of them a chat template is for."""

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from api.tools.dialects import deepseek, glm, granite, kimi, qwen_coder
from api.tools.dialects.harmony import harmony
from api.tools.dialects.hermes import hermes
from api.tools.dialects.llama import llama3_json
from api.tools.dialects.mistral import mistral
from api.tools.parsing.tape import Parser

ToolCallParser = Literal[
    "auto",
    "deepseek_v3",
    "deepseek_v31",
    "glm45",
    "glm47",
    "granite",
    "hermes",
    "kimi_k2",
    "llama3_json",
    "mistral",
    "openai",
    "qwen3_coder",
    "seed_oss",
]
AUTO: ToolCallParser = "auto"
KNOWN_TEMPLATES = 32  # what they are for is known: each is looked through once
SHORT_ID = 9  # letters, and no more: Mistral's templates refuse all others
ALPHANUMERIC = string.ascii_letters + string.digits


def long_id(name: str = "", number: int = 0) -> str:
    """A new name for a call, as OpenAI has them."""
    del name, number
    return f"call_{secrets.token_hex(12)}"


def short_id(name: str = "", number: int = 0) -> str:
    """A new name for a call, as Mistral's templates have them."""
    del name, number
    return "".join(secrets.choice(ALPHANUMERIC) for _ in range(SHORT_ID))


@dataclass(frozen=True, slots=True)
class Dialect:
    """`markers` are read also where they are special tokens.

    Templates for it have all of `signs`, and nothing of what is `foreign` to it. `new_id` is
    a name that they will take back, for a call of this function with this number in the
    conversation.
    """

    parser: Parser
    markers: tuple[str, ...]
    signs: tuple[str, ...]
    foreign: tuple[str, ...] = ()
    new_id: Callable[[str, int], str] = long_id


FENCED = (deepseek.CALL, deepseek.JSON_FENCE)
GLM = Dialect(glm.glm, glm.MARKERS, (glm.OPENS, glm.KEY), ("<tool_calls>",))
DIALECTS: Mapping[str, Dialect] = {
    "deepseek_v3": Dialect(deepseek.deepseek_v3, deepseek.MARKERS, FENCED),
    "deepseek_v31": Dialect(
        deepseek.deepseek_v31, deepseek.MARKERS, (deepseek.CALL,), (deepseek.JSON_FENCE,)
    ),
    "glm45": GLM,
    "glm47": GLM,
    "granite": Dialect(granite.granite, (granite.MARK,), (granite.MARK,)),
    "hermes": Dialect(
        hermes,
        qwen_coder.TAGS,
        ("<tool_call>",),
        ("<function=", "<arg_key>", "<tool_calls>", "<invoke "),
    ),
    "kimi_k2": Dialect(kimi.kimi_k2, kimi.MARKERS, (kimi.ARGUMENTS,), new_id=kimi.new_id),
    "llama3_json": Dialect(
        llama3_json,
        ("<|python_tag|>",),
        ("<|start_header_id|>", '"parameters": '),
        ("<tool_call>",),
    ),
    "mistral": Dialect(
        mistral,
        ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
        ("[TOOL_CALLS]",),
        new_id=short_id,
    ),
    "openai": Dialect(
        harmony,
        ("<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"),
        ("<|channel|>commentary",),
    ),
    "qwen3_coder": Dialect(
        qwen_coder.qwen3_coder, qwen_coder.TAGS, ("<tool_call>", "<function=", "<parameter=")
    ),
    "seed_oss": Dialect(qwen_coder.seed_oss, qwen_coder.SEED_TAGS, qwen_coder.SEED_TAGS[:1]),
}


def find_dialect(told: ToolCallParser, template: object) -> Dialect | None:
    """What was told, or else the one that the chat template is for; None: there is none.

    A tokenizer may have several templates by name.
    """
    if told != AUTO:
        return DIALECTS[told]
    return _dialect_of(text_of(template))


@lru_cache(KNOWN_TEMPLATES)
def _dialect_of(template: str) -> Dialect | None:
    return next((one for one in DIALECTS.values() if _is_for(template, one)), None)


def _is_for(text: str, dialect: Dialect) -> bool:
    signs, foreign = dialect.signs, dialect.foreign
    return all(one in text for one in signs) and not any(one in text for one in foreign)


def text_of(template: object) -> str:
    """All of a chat template, or of several; empty where there is none."""
    if isinstance(template, str):
        return template
    if isinstance(template, Mapping):
        return "\n".join(map(text_of, template.values()))
    if isinstance(template, Sequence):
        return "\n".join(map(text_of, template))
    return ""
