"""Fields that OpenAI or vLLM know and pdserve does not support: refused by name, never ignored.

A field may be sent with its neutral value, which changes nothing. Fields that neither of the
two knows are ignored, as both do. So are fields that do not change the answer: OpenAI's
`metadata`, `safety_identifier`, `prompt_cache_key`, `store` and `service_tier`.
"""

from collections.abc import Mapping

NONE = (None,)
BEST_OF = "best_of"
SAMPLING: Mapping[str, tuple[object, ...]] = {
    "beam_width": (None, 1),
    BEST_OF: (None, 1),
    "length_penalty": (None, 1),
    "logits_processors": (None, []),
    "repetition_detection": NONE,
    "thinking_token_budget": NONE,
    "use_beam_search": (None, False),
}
"""Fields that a node's `sampling_params` and both text endpoints share."""

NODE_SAMPLING: Mapping[str, tuple[object, ...]] = {
    **SAMPLING,
    "guided_choice": NONE,
    "guided_grammar": NONE,
    "guided_json": NONE,
    "guided_regex": NONE,
    "n": (None, 1),
    "stop": (None, [], ""),
    "structural_tag": NONE,
    "truncate_prompt_tokens": NONE,
}

_SURFACE: Mapping[str, tuple[object, ...]] = {
    **SAMPLING,
    "ec_transfer_params": NONE,
    "logprob_token_ids": NONE,
    "spaces_between_special_tokens": (None, True),
    "vllm_xargs": (None, {}),
}

COMPLETIONS: Mapping[str, tuple[object, ...]] = {
    **_SURFACE,
    "prompt_embeds": NONE,
    "suffix": (None, ""),
}

CHAT: Mapping[str, tuple[object, ...]] = {
    **_SURFACE,
    "audio": NONE,
    "chat_template": NONE,
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "media_io_kwargs": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "modalities": (None, ["text"]),
    "moderation": NONE,
    "prediction": NONE,
    "verbosity": (None, "medium"),
    "web_search_options": NONE,
}

TOKENIZE: Mapping[str, tuple[object, ...]] = {
    name: CHAT[name] for name in ("chat_template", "media_io_kwargs", "mm_processor_kwargs")
}
"""Fields that would make another prompt of the messages."""

POOLING: Mapping[str, tuple[object, ...]] = {
    "chat_template": NONE,
    "embed_dtype": (None, "float32"),
    "endianness": (None, "native"),
    "instruction": NONE,
    "messages": NONE,
    "mm_processor_kwargs": (None, {}),
    "normalize": NONE,
}


class UnsupportedField(ValueError):
    """The request uses a known but unsupported field; `param` is its name."""

    def __init__(self, param: str) -> None:
        super().__init__(f"{param} is not supported yet")
        self.param = param


def refuse_unsupported(
    given: Mapping[str, object], table: Mapping[str, tuple[object, ...]]
) -> None:
    """Raises UnsupportedField for the first field whose value is not neutral."""
    for name, neutral in table.items():
        all_told = (given.get("n"),) if name == BEST_OF else ()
        if name in given and not _is_one_of(given[name], (*neutral, *all_told)):
            raise UnsupportedField(name)


def _is_one_of(value: object, neutral: tuple[object, ...]) -> bool:
    """Whether the values include this one; False is not 0 where only one of them is neutral."""
    for one in neutral:
        numbers = isinstance(value, int | float) and isinstance(one, int | float)
        same_kind = isinstance(value, bool) == isinstance(one, bool)
        if value == one and (same_kind or not numbers):
            return True
    return False
