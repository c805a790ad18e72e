"""The marks around what models think aloud, under the names that vLLM has for them."""

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
    "deepseek_r1",
    "deepseek_v3",
    "ernie45",
    "gemma4",
    "glm45",
    "granite",
    "hunyuan_a13b",
    "hy3",
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
class Form:
    """`begun`: where the prompt does not tell, an answer is reasoning from its beginning.
    `before`: what models may write before the opening mark. `calls`: what models may begin
    calls with that have not closed it: that ends it as well, and is content. `too` are others
    that open it, and `also` others that close it. `around`: marks that may stand around the
    content. `channels`: these are headers of messages, of which an answer may have more, and
    those of calls begin with `calling`.
    """

    opens: str
    closes: str
    begun: bool = False
    before: str = ""
    calls: tuple[str, ...] = ()
    channels: bool = False
    too: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    around: tuple[str, str] | None = None
    calling: str = ""

    @property
    def openings(self) -> tuple[str, ...]:
        """All that open it."""
        return self.opens, *self.too

    @property
    def closings(self) -> tuple[str, ...]:
        """All that close it, and say nothing else."""
        return self.closes, *self.also

    @property
    def marks(self) -> tuple[str, ...]:
        """All that may be in an answer without channels."""
        return *self.openings, *self.closings, *self.calls, *(self.around or ())


THINK = Form("<think>", "</think>")
FORMS: Mapping[str, Form] = {
    "cohere": Form("<|START_THINKING|>", "<|END_THINKING|>"),
    "deepseek_r1": Form("<think>", "</think>", begun=True),
    "deepseek_v3": THINK,
    "ernie45": Form("<think>", "</think>", begun=True, around=("<response>", "</response>")),
    "gemma4": Form("<|channel>thought", "<channel|>"),
    "glm45": Form("<think>", "</think>", before="\n"),
    "granite": Form(
        "Here is my thought process:",
        "Here is my response:",
        too=("Here's my thought process:",),
        also=("Here's my response:",),
    ),
    "hunyuan_a13b": Form("<think>", "</think>", around=("<answer>", "</answer>")),
    "hy3": Form("<think:opensource>", "</think:opensource>"),
    "kimi_k2": Form("<think>", "</think>", begun=True, calls=kimi.OPENS),
    "minimax_m2": Form("<think>", "</think>", begun=True),
    "mistral": Form("[THINK]", "[/THINK]"),
    "olmo3": Form("<think>", "</think>", begun=True),
    "openai_gptoss": Form(
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        channels=True,
        also=("<|channel|>final <|constrain|>json<|message|>",),
        calling="<|channel|>commentary",
    ),
    "qwen3": THINK,
    "seed_oss": Form("<seed:think>", "</seed:think>"),
    "step3": Form("<think>", "</think>", begun=True),
}


def find_form(told: ReasoningParser, template: object) -> Form | None:
    """What was told, or with `auto` the first with a mark in the chat template; or None."""
    if told != AUTO:
        return FORMS.get(told)
    return _form_of(template_text(template))


@lru_cache(KNOWN_TEMPLATES)
def _form_of(template: str) -> Form | None:
    known = (one for one in FORMS.values() if not one.begun)
    return next((one for one in known if one.opens in template or one.closes in template), None)
