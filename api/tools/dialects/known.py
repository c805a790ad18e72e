"""All dialects by name, and the choice of the one that a chat template belongs to."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Literal

from api.tools.dialects import (
    apertus,
    deepseek,
    gemma,
    glm,
    harmony,
    hermes,
    hunyuan,
    invoke,
    kimi,
    kimi_elements,
    listed,
    llama,
    minimax_m3,
    mistral,
    pythonic,
    qwen_coder,
    xlam,
)
from api.tools.dialects.dialect import Dialect

ToolCallParser = Literal[
    "auto",
    "apertus",
    "apriel",
    "cohere",
    "cohere_command3",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "ernie45",
    "functiongemma",
    "gemma4",
    "glm45",
    "glm47",
    "granite",
    "granite4",
    "granite-20b-fc",
    "hermes",
    "hunyuan_a13b",
    "hy3",
    "hy_v3",
    "hy_v4",
    "internlm",
    "jamba",
    "kimi_k2",
    "kimi_k3",
    "lfm2",
    "ling3",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "longcat",
    "mimo",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "nemotron",
    "olmo3",
    "openai",
    "phi4_mini_json",
    "poolside_v1",
    "pythonic",
    "qwen3_coder",
    "qwen3_json",
    "qwen3_xml",
    "seed_oss",
    "step3",
    "step3p5",
    "xlam",
]
AUTO: ToolCallParser = "auto"
KNOWN_TEMPLATES = 32  # templates whose dialect is cached: each is searched once

DIALECTS: Mapping[str, Dialect] = {
    "minimax_m3": minimax_m3.MINIMAX_M3,  # whose tags are those of others, behind a mark
    "apertus": apertus.APERTUS,
    "apriel": listed.APRIEL,
    "cohere": listed.COMMAND,
    "deepseek_v3": deepseek.V3,
    "deepseek_v31": deepseek.V31,
    "deepseek_v41": invoke.DEEPSEEK_V41,  # whose template has V3.2's sign, too
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
    "hy_v4": hunyuan.HY4,
    "internlm": hermes.INTERNLM,
    "kimi_k2": kimi.KIMI,
    "kimi_k3": kimi_elements.KIMI_K3,
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

OTHER_NAMES: Mapping[str, str] = {
    "cohere_command3": "cohere",
    "deepseek_v4": "deepseek_v32",
    "granite4": "hermes",
    "hy_v3": "hy3",
    "jamba": "apriel",
    "ling3": "glm45",
    "llama4_json": "llama3_json",
    "mimo": "qwen3_coder",
    "poolside_v1": "glm45",
    "qwen3_json": "hermes",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
}
"""What vLLM calls its parsers of the same texts."""


def find_dialect(
    told: ToolCallParser, template: object, added_tokens: Collection[str] = ()
) -> Dialect | None:
    """The given dialect, or else the one of the chat template; None: there is none.

    A tokenizer may have several templates by name. Its `added_tokens` tell the words of tags
    that differ from model to model.
    """
    if told == AUTO:
        found = _dialect_of(template_text(template))
    else:
        found = DIALECTS[OTHER_NAMES.get(told, told)]
    return hunyuan.hy4(hunyuan.word_among(added_tokens)) if found is hunyuan.HY4 else found


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
