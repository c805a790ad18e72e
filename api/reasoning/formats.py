"""The marks that models put around reasoning, by the names of vLLM's reasoning parsers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from api.tools.dialects import harmony, hunyuan, invoke, kimi, kimi_elements
from api.tools.dialects.known import KNOWN_TEMPLATES, template_text

ReasoningParser = Literal[
    "none",
    "auto",
    "cohere",
    "cohere_command3",
    "deepseek_r1",
    "deepseek_v3",
    "deepseek_v4",
    "deepseek_v41",
    "ernie45",
    "gemma4",
    "glm45",
    "glm47",
    "granite",
    "granite_thinking_parser",
    "holo2",
    "hunyuan_a13b",
    "hy3",
    "hy_v3",
    "hy_v4",
    "kimi_k2",
    "kimi_k3",
    "ling3",
    "mimo",
    "minimax_m2",
    "minimax_m3",
    "mistral",
    "nemotron_v3",
    "olmo3",
    "openai_gptoss",
    "poolside_v1",
    "qwen3",
    "seed_oss",
    "step3",
    "step3p5",
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
    `elements`: the marks are tags of elements, of which an answer has several; `closes` is
    the one that opens the text, where a grammar begins. `parts`: the special tokens of which
    marks are made, if one has several.
    `drops_closing`: a closing mark that an answer without reasoning begins with is no content.
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
    drops_closing: bool = False
    elements: bool = False
    parts: tuple[str, ...] = ()

    @property
    def openings(self) -> tuple[str, ...]:
        """All marks that open reasoning."""
        return self.opens, *self.other_openings

    @property
    def closings(self) -> tuple[str, ...]:
        """All marks that close reasoning and are not content themselves."""
        return self.closes, *self.other_closings

    @property
    def stray_closings(self) -> tuple[str, ...]:
        """All marks that are dropped at the beginning of an answer without reasoning."""
        return self.closings if self.drops_closing else ()

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks that an answer may have, or their parts."""
        return self.parts or (
            *self.openings,
            *self.closings,
            *self.call_openings,
            *(self.answer_marks or ()),
        )


THINK = ReasoningFormat("<think>", "</think>")
COMMAND = ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>")
DEEPSEEK_R1 = ReasoningFormat("<think>", "</think>", starts_open=True)
DEEPSEEK_V4 = ReasoningFormat(
    "<think>",
    "</think>",
    starts_open=True,
    call_openings=(*invoke.DSML.opens, *invoke.SPACED_DSML.opens),
)
GLM = ReasoningFormat("<think>", "</think>", before_opening="\n")
HY3 = ReasoningFormat("<think:opensource>", "</think:opensource>")


@lru_cache(hunyuan.KNOWN_WORDS)
def hy4(word: str) -> ReasoningFormat:
    """The marks of a Hy4 with this word in its tags."""
    return ReasoningFormat(f"<think{word}>", f"</think{word}>")


HY4 = hy4("")
REASONING_FORMATS: Mapping[str, ReasoningFormat] = {
    "cohere": COMMAND,
    "cohere_command3": COMMAND,
    "deepseek_r1": DEEPSEEK_R1,
    "deepseek_v3": THINK,
    "deepseek_v4": DEEPSEEK_V4,
    "deepseek_v41": DEEPSEEK_V4,
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
    "granite_thinking_parser": THINK,
    "holo2": DEEPSEEK_R1,
    "hunyuan_a13b": ReasoningFormat(
        "<think>", "</think>", answer_marks=("<answer>", "</answer>")
    ),
    "hy3": HY3,
    "hy_v3": HY3,
    "hy_v4": HY4,
    "kimi_k2": ReasoningFormat(
        "<think>", "</think>", starts_open=True, call_openings=kimi.OPENS
    ),
    "kimi_k3": ReasoningFormat(
        kimi_elements.opening(kimi_elements.THINK),
        kimi_elements.opening(kimi_elements.RESPONSE),
        starts_open=True,
        other_closings=(kimi_elements.closing(kimi_elements.THINK),),
        elements=True,
        parts=kimi_elements.MARKERS,
    ),
    "ling3": GLM,
    "mimo": THINK,
    "minimax_m2": DEEPSEEK_R1,
    "minimax_m3": ReasoningFormat("<mm:think>", "</mm:think>", drops_closing=True),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
    "nemotron_v3": THINK,
    "olmo3": DEEPSEEK_R1,
    "openai_gptoss": ReasoningFormat(
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        channels=True,
        other_closings=("<|channel|>final <|constrain|>json<|message|>",),
        call_header="<|channel|>commentary",
        parts=harmony.MARKS,
    ),
    "poolside_v1": THINK,
    "qwen3": THINK,
    "seed_oss": ReasoningFormat("<seed:think>", "</seed:think>"),
    "step3": DEEPSEEK_R1,
    "step3p5": DEEPSEEK_R1,
}


def find_format(
    told: ReasoningParser, template: object, added_tokens: Collection[str] = ()
) -> ReasoningFormat | None:
    """The format of a parser's name; `auto`: the first whose mark the template has. The
    tokenizer's `added_tokens` tell the words of marks that differ from model to model.
    """
    if told == AUTO:
        return _format_of(template_text(template))
    found = REASONING_FORMATS.get(told)
    return hy4(hunyuan.word_among(added_tokens)) if found is HY4 else found


@lru_cache(KNOWN_TEMPLATES)
def _format_of(template: str) -> ReasoningFormat | None:
    known = (one for one in REASONING_FORMATS.values() if not one.starts_open)
    return next((one for one in known if one.opens in template or one.closes in template), None)
