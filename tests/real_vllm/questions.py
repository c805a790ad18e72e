"""What is asked: all that a vLLM node and one of ours answer alike, by name."""

from collections.abc import Mapping
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
LONG = " a prefill node and a decode node" * 20
RUNS = {"prompt": "A prefill node runs", "max_tokens": 30}
HELD = {"prompt": f"A prefill node runs{LONG}", "max_tokens": 30}
CHATS = {"messages": [{"role": "user", "content": "What is a decode node?"}], "max_tokens": 30}
SAID = {"messages": [{"role": "user", "content": "Say it"}], "max_tokens": 20}
STREAM = {"stream": True, "stream_options": {"include_usage": True}}

QUESTIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "a completion": (COMPLETIONS, HELD),
    "its stream": (COMPLETIONS, {**HELD, **STREAM}),
    "one token": (COMPLETIONS, {**HELD, "max_tokens": 1}),
    "token ids": (COMPLETIONS, {**RUNS, "prompt": [5, 6, 7, 8]}),
    "two prompts": (COMPLETIONS, {**RUNS, "prompt": ["A prefill node", "A decode node"]}),
    "a chat": (CHAT, CHATS),
    "its stream of events": (CHAT, {**CHATS, **STREAM}),
    "a short limit": (CHAT, {**CHATS, "max_completion_tokens": 4}),
    "log-probabilities": (COMPLETIONS, {**HELD, "logprobs": 3}),
    "those of what was drawn": (COMPLETIONS, {**RUNS, "logprobs": 0}),
    "those of a chat": (CHAT, {**CHATS, "logprobs": True, "top_logprobs": 3}),
    "those of a prompt": (CHAT, {**CHATS, "prompt_logprobs": 2}),
    "an echo": (COMPLETIONS, {**RUNS, "echo": True}),
    "a stop string": (COMPLETIONS, {**RUNS, "stop": ["where"]}),
    "one that is shown": (
        COMPLETIONS,
        {**RUNS, "stop": ["where"], "include_stop_str_in_output": True},
    ),
    "stop tokens": (COMPLETIONS, {**RUNS, "stop_token_ids": [*range(300, 400)]}),
    "a least length": (CHAT, {**CHATS, "max_tokens": 60, "min_tokens": 50}),
    "no end": (CHAT, {**CHATS, "max_tokens": 60, "ignore_eos": True}),
    "a bias": (COMPLETIONS, {**RUNS, "logit_bias": {"77": 100}}),
    "allowed tokens": (COMPLETIONS, {**RUNS, "allowed_token_ids": [50, 51, 52]}),
    "penalties": (COMPLETIONS, {**RUNS, "presence_penalty": 1.5, "frequency_penalty": 1.0}),
    "a penalty of repetition": (COMPLETIONS, {**HELD, "repetition_penalty": 1.4}),
    "an expression": (CHAT, {**SAID, "structured_outputs": {"regex": "[ab]{3}"}}),
    "a choice": (CHAT, {**SAID, "structured_outputs": {"choice": ["yes", "no"]}}),
    "a grammar": (CHAT, {**SAID, "structured_outputs": {"grammar": 'root ::= "ab" | "cd"'}}),
    "a salt": (COMPLETIONS, {**HELD, "cache_salt": "grain"}),
}
