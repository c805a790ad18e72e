"""Calls with everything that a text endpoint can be asked for, drawn at random."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.checkpoints import VOCABULARY
from tests.fakes.driver import prompt
from tests.soak.questions import SHARED

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PARSER = "hermes"  # how the model would write calls if it could
LONGEST_PROMPT, LONGEST_ANSWER = 100, 300
CHATS, PIECEMEAL = 0.4, 0.85
LETTERS = "abcdefghijklmnop 01"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "number": {"type": "integer", "minimum": 0, "maximum": 999},
        "is_new": {"type": "boolean"},
    },
    "required": ["name", "number", "is_new"],
    "additionalProperties": False,
}
FORMS: Sequence[dict[str, Any]] = (
    {"regex": "[a-c]{3,30}x[0-9]+"},
    {"choice": ["a long choice of words", "a long choice of names", "another"]},
    {"json": SCHEMA},
    {"json_object": True},
    {"grammar": 'root ::= "a" root | "b"'},
)
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("find", "get")
]
ANSWER_FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
Draw = Callable[[random.Random], object]
SAMPLING: Mapping[str, tuple[float, Draw]] = {
    "top_p": (0.3, lambda chance: chance.uniform(0.3, 1)),
    "top_k": (0.3, lambda chance: chance.randrange(1, 60)),
    "min_p": (0.2, lambda chance: chance.uniform(0, 0.2)),
    "presence_penalty": (0.3, lambda chance: chance.uniform(-1, 2)),
    "frequency_penalty": (0.3, lambda chance: chance.uniform(-1, 2)),
    "repetition_penalty": (0.3, lambda chance: chance.uniform(0.8, 1.6)),
    "logit_bias": (
        0.2,
        lambda chance: {str(one): chance.uniform(-5, 5) for one in _tokens(chance)},
    ),
    "bad_words": (0.15, lambda chance: chance.sample(LETTERS[:16], 2)),
    "stop": (0.3, lambda chance: [_word(chance) for _ in range(chance.randrange(1, 4))]),
    "stop_token_ids": (0.2, lambda chance: _tokens(chance)),
    "include_stop_str_in_output": (0.2, lambda _: True),
    "ignore_eos": (0.4, lambda _: True),
    "skip_special_tokens": (0.1, lambda _: False),
    "n": (0.2, lambda _: 2),
}
OF_COMPLETIONS: Mapping[str, tuple[float, Draw]] = {
    "logprobs": (0.35, lambda chance: chance.randrange(0, 4)),
    "prompt_logprobs": (0.15, lambda _: 1),
    "echo": (0.1, lambda _: True),
    "structured_outputs": (0.35, lambda chance: chance.choice(FORMS)),
}
OF_CHATS: Mapping[str, tuple[float, Draw]] = {
    "top_logprobs": (0.5, lambda chance: chance.randrange(0, 4)),
    "response_format": (0.25, lambda _: ANSWER_FORM),
    "tool_choice": (
        0.45,
        lambda chance: chance.choice(
            ["auto", "required", {"type": "function", "function": {"name": "get"}}]
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Wish:
    """One call of `path`, with all its fields but the model's name."""

    number: int
    path: str
    n: int
    fields: dict[str, Any] = field(repr=False)

    def body(self, model: str) -> dict[str, Any]:
        """What a client sends."""
        return {"model": model, **self.fields}


def wishes(count: int, chance: random.Random) -> list[Wish]:
    """Chats and completions, streamed or whole, each with some of all that there is."""
    return [_wish(number, chance) for number in range(count)]


def _wish(number: int, chance: random.Random) -> Wish:
    most = chance.randrange(1, LONGEST_ANSWER)
    fields: dict[str, Any] = {
        "max_tokens": most,
        "min_tokens": chance.choice([0, 0, 0, chance.randrange(most + 1)]),
        "temperature": chance.choice([0.0, 0.0, 0.8, 1.5]),
        "seed": chance.randrange(1 << 31),
        "return_token_ids": True,
        **_some(SAMPLING, chance),
    }
    own = prompt(chance.randrange(1, LONGEST_PROMPT), chance.randrange(10_000))
    if chance.random() < CHATS:
        path = CHAT
        words = "".join(chr(ord("a") + token % 26) for token in own)
        fields |= {"messages": [{"role": "user", "content": words}], **_some(OF_CHATS, chance)}
        fields |= {"logprobs": True} if "top_logprobs" in fields else {}
        fields |= {"tools": TOOLS} if "tool_choice" in fields else {}
    else:
        path = COMPLETIONS
        shared = chance.choice([SHARED, (), ()])
        fields |= {"prompt": [*shared, *own], **_some(OF_COMPLETIONS, chance)}
    if "prompt_logprobs" not in fields and chance.random() < PIECEMEAL:
        usage = {"include_usage": True, "continuous_usage_stats": chance.random() < 0.3}
        fields |= {"stream": True, "stream_options": usage}
    return Wish(number, path, fields.get("n", 1), fields)


def _some(fields: Mapping[str, tuple[float, Draw]], chance: random.Random) -> dict[str, object]:
    return {
        name: draw(chance) for name, (often, draw) in fields.items() if chance.random() < often
    }


def _tokens(chance: random.Random) -> list[int]:
    return chance.sample(range(5, VOCABULARY), 3)


def _word(chance: random.Random) -> str:
    return "".join(chance.choices(LETTERS, k=chance.choice([1, 1, 2])))
