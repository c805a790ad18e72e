"""Usage and extras of an answer beside its text: tokens, timings and `kv_transfer_params`."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from api.answering import Answer
from api.choices import ChoiceState
from api.generator import StageEvent
from kv_transfer.ticket import to_params

Params = dict[str, Any]


class PromptDetails(msgspec.Struct, frozen=True):
    """How much of the prompts was in a prefix cache."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """How much of the answers was reasoning."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """A prompt counts once, however many choices answer it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


class Stage(msgspec.Struct, frozen=True):
    """How long one stage took, and how many bytes of KV it moved."""

    stage: str
    seconds: float
    num_bytes: int


class Timings(msgspec.Struct, frozen=True):
    """The stages of all choices, in the order they were over."""

    stages: Sequence[Stage]


def usage_of(answer: Answer) -> Usage:
    """The usage of all choices of a request."""
    firsts = answer.choices[:: answer.request.n]
    return _usage(
        sum(len(choice.call.request.prompt) for choice in firsts),
        sum(choice.num_tokens for choice in answer.choices),
        sum(choice.cached_tokens for choice in firsts),
        _reasoning(answer, sum(choice.reasoning_tokens for choice in answer.choices)),
    )


def usage_in_chunk(answer: Answer, choice: ChoiceState, said: int) -> Usage | UnsetType | None:
    """A chunk's `usage`: that of its choice so far, null if it comes at the end, or absent.

    `said` is how many tokens the choice has with this chunk.
    """
    if answer.request.options.continuous_usage_stats:
        reasoning = _reasoning(answer, min(choice.reasoning_tokens, said))
        return _usage(len(choice.call.request.prompt), said, choice.cached_tokens, reasoning)
    return None if answer.request.options.include_usage else UNSET


def usage_at_end(answer: Answer) -> Usage | UnsetType:
    """The `usage` of a stream's last chunk, if the client asked for it."""
    return usage_of(answer) if answer.request.options.include_usage else UNSET


def timings_of(answer: Answer) -> Timings | UnsetType:
    """The stages, if the client asked for them."""
    if not answer.request.timings:
        return UNSET
    return Timings([_stage(event) for choice in answer.choices for event in choice.stages])


def params_of(choice: ChoiceState) -> Params | UnsetType:
    """The `kv_transfer_params` for the decode leg, if this was the prefill leg."""
    if choice.ticket is None or not choice.call.leg.hold:
        return UNSET
    return to_params(choice.ticket)


def _stage(event: StageEvent) -> Stage:
    return Stage(event.stage, event.seconds, event.num_bytes)


def _reasoning(answer: Answer, tokens: int) -> CompletionDetails | UnsetType:
    """The details; UNSET unless a reasoning parser reads the answer."""
    return CompletionDetails(tokens) if answer.request.thinking else UNSET


def _usage(
    prompt: int, said: int, cached: int, details: CompletionDetails | UnsetType
) -> Usage:
    return Usage(prompt, said, prompt + said, PromptDetails(cached), details)
