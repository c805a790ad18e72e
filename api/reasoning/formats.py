"""The marks that models put around reasoning, by the names of vLLM's reasoning parsers."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from api.tools.dialects import kimi
from api.tools.dialects.known import KNOWN_TEMPLATES, template_text

ReasoningParser = Literal[
    "none",
    "auto",
    "cohere",
    "cohere_command3",
    "deepseek_r1",
    "deepseek_v3",
    "ernie45",
    "gemma4",
    "glm45",
    "glm47",
    "granite",
    "hunyuan_a13b",
    "hy3",
    "hy_v3",
    "kimi_k2",
    "minimax_m2",
    "mistral",
    "olmo3",
    "openai_gptoss",
    "qwen3",
    "seed_oss",
    "step3",
]
OFF: ReasoningParser = "none"
AUTO: ReasoningParser = "auto"


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The marks that a family of models puts around reasoning.

    `starts_open`: the answer begins within reasoning, unless the prompt says otherwise.
    `before_opening`: text that may come before the opening mark. `call_openings`: marks of
    tool calls that end reasoning as well, and are content. `answer_marks`: marks that may
    stand around the content. `channels`: the marks are headers of Harmony messages, of which
    an answer may have several; those of tool calls begin with `call_header`.
    """

    opens: str
    closes: str
    starts_open: bool = False
    before_opening: str = ""
    call_openings: tuple[str, ...] = ()
    channels: bool = False
    other_openings: tuple[str, ...] = ()
    other_closings: tuple[str, ...] = ()
    answer_marks: tuple[str, str] | None = None
    call_header: str = ""

    @property
    def openings(self) -> tuple[str, ...]:
        """All marks that open reasoning."""
        return self.opens, *self.other_openings

    @property
    def closings(self) -> tuple[str, ...]:
        """All marks that close reasoning and are not content themselves."""
        return self.closes, *self.other_closings

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that an answer without channels may have."""
        return *self.openings, *self.closings, *self.call_openings, *(self.answer_marks or ())


THINK = ReasoningFormat("<think>", "</think>")
COMMAND = ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>")
GLM = ReasoningFormat("<think>", "</think>", before_opening="\n")
HY3 = ReasoningFormat("<think:opensource>", "</think:opensource>")
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "cohere": COMMAND,
    "cohere_command3": COMMAND,
    "deepseek_r1": ReasoningFormat("<think>", "</think>", starts_open=True),
    "deepseek_v3": THINK,
    "ernie45": ReasoningFormat(
        "<think>", "</think>", starts_open=True, answer_marks=("<response>", "</response>")
    ),
    "gemma4": ReasoningFormat("<|channel>thought", "<channel|>"),
    "glm45": GLM,
    "glm47": GLM,
    "granite": ReasoningFormat(
        "Here is my thought process:",
        "Here is my response:",
        other_openings=("Here's my thought process:",),
        other_closings=("Here's my response:",),
    ),
    "hunyuan_a13b": ReasoningFormat(
        "<think>", "</think>", answer_marks=("<answer>", "</answer>")
    ),
    "hy3": HY3,
    "hy_v3": HY3,
    "kimi_k2": ReasoningFormat(
        "<think>", "</think>", starts_open=True, call_openings=kimi.OPENS
    ),
    "minimax_m2": ReasoningFormat("<think>", "</think>", starts_open=True),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "olmo3": ReasoningFormat("<think>", "</think>", starts_open=True),
    "openai_gptoss": ReasoningFormat(
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        channels=True,
        other_closings=("<|channel|>final <|constrain|>json<|message|>",),
        call_header="<|channel|>commentary",
    ),
    "qwen3": THINK,
    "seed_oss": ReasoningFormat("<seed:think>", "</seed:think>"),
    "step3": ReasoningFormat("<think>", "</think>", starts_open=True),
}


def find_format(told: ReasoningParser, template: object) -> ReasoningFormat | None:
    """The format of a parser's name; `auto`: the first whose mark the template has."""
    if told != AUTO:
        return REASONING_FORMATS.get(told)
    return _format_of(template_text(template))


@lru_cache(KNOWN_TEMPLATES)
def _format_of(template: str) -> ReasoningFormat | None:
    known = (one for one in REASONING_FORMATS.values() if not one.starts_open)
    return next((one for one in known if one.opens in template or one.closes in template), None)
