"""All dialects by name, and the choice of the one that a chat template belongs to."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

from api.tools.dialects import (
    deepseek,
    gemma,
    glm,
    harmony,
    hermes,
    hunyuan,
    invoke,
    kimi,
    listed,
    llama,
    mistral,
    pythonic,
    qwen_coder,
    xlam,
)
from api.tools.dialects.dialect import Dialect

ToolCallParser = Literal[
    "auto",
    "apriel",
    "cohere",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "ernie45",
    "functiongemma",
    "gemma4",
    "glm45",
    "glm47",
    "granite",
    "granite-20b-fc",
    "hermes",
    "hunyuan_a13b",
    "hy3",
    "internlm",
    "kimi_k2",
    "lfm2",
    "llama3_json",
    "llama4_pythonic",
    "longcat",
    "minimax_m2",
    "mistral",
    "nemotron",
    "olmo3",
    "openai",
    "phi4_mini_json",
    "pythonic",
    "qwen3_coder",
    "seed_oss",
    "step3",
    "xlam",
]
AUTO: ToolCallParser = "auto"
KNOWN_TEMPLATES = 32  # templates whose dialect is cached: each is searched once

DIALECTS: Mapping[str, Dialect] = {
    "apriel": listed.APRIEL,
    "cohere": listed.COMMAND,
    "deepseek_v3": deepseek.V3,
    "deepseek_v31": deepseek.V31,
    "deepseek_v32": invoke.DEEPSEEK_V32,
    "ernie45": hermes.ERNIE,
    "functiongemma": gemma.FUNCTION_GEMMA,
    "gemma4": gemma.GEMMA,
    "glm45": glm.GLM,
    "glm47": glm.GLM,
    "granite": listed.GRANITE,
    "granite-20b-fc": hermes.GRANITE_20B,
    "hermes": hermes.HERMES,
    "hunyuan_a13b": listed.APRIEL,
    "hy3": hunyuan.HY3,
    "internlm": hermes.INTERNLM,
    "kimi_k2": kimi.KIMI,
    "lfm2": pythonic.LFM2,
    "llama3_json": llama.LLAMA,
    "llama4_pythonic": pythonic.LLAMA4,
    "longcat": glm.LONGCAT,
    "minimax_m2": invoke.MINIMAX_M2,
    "mistral": mistral.MISTRAL,
    "nemotron": listed.NEMOTRON,
    "olmo3": pythonic.OLMO3,
    "openai": harmony.HARMONY,
    "phi4_mini_json": listed.PHI,
    "pythonic": pythonic.PYTHONIC,
    "qwen3_coder": qwen_coder.QWEN,
    "seed_oss": qwen_coder.SEED,
    "step3": invoke.STEP_3,
    "xlam": xlam.XLAM,
}
"""The order matters: the first dialect whose signs a template has is chosen."""


def find_dialect(told: ToolCallParser, template: object) -> Dialect | None:
    """The given dialect, or else the one of the chat template; None: there is none.

    A tokenizer may have several templates by name.
    """
    if told != AUTO:
        return DIALECTS[told]
    return _dialect_of(template_text(template))


@lru_cache(KNOWN_TEMPLATES)
def _dialect_of(template: str) -> Dialect | None:
    return next((one for one in DIALECTS.values() if _is_for(template, one)), None)


def _is_for(text: str, dialect: Dialect) -> bool:
    signs, foreign = dialect.template_signs, dialect.foreign_signs
    return all(one in text for one in signs) and not any(one in text for one in foreign)


def template_text(template: object) -> str:
    """The whole text of a chat template, or of several; empty if there is none."""
    if isinstance(template, str):
        return template
    if isinstance(template, Mapping):
        return "\n".join(map(template_text, template.values()))
    if isinstance(template, Sequence):
        return "\n".join(map(template_text, template))
    return ""
