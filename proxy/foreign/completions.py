"""Decodes answers of vLLM's `/v1/completions` as a leg's events. Pure.

They are converted to those of `/inference/v1/generate`: token ids instead of text. The
likeliest tokens are written as `token_id:N`, because of `return_tokens_as_token_ids`; their
ranks, which are missing, follow from their order.
"""

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import msgspec

from api.generated import (
    DONE,
    LAST_FRAME,
    NodeChoice,
    NodeChunk,
    NodeError,
    NodeUsage,
    read_chunk,
)
from api.generator import EndEvent, Event
from api.node_logprobs import NodeLogprobs, NodeTokenLogprob, NodeTopLogprob, PromptLogprobs
from api.wire import UNREADABLE, WireError
from engine.request import FinishReason, TokenId

NO_IDS = "it says text and no token ids: vLLM has return_token_ids since 0.10.2"


class _Logprobs(msgspec.Struct):
    tokens: tuple[str, ...] = ()
    token_logprobs: tuple[float | None, ...] = ()
    top_logprobs: tuple[Mapping[str, float | None] | None, ...] | None = None


class _Choice(msgspec.Struct):
    text: str | None = ""
    token_ids: tuple[TokenId, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: _Logprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None


class _Completion(msgspec.Struct):
    choices: tuple[_Choice, ...] = ()
    usage: NodeUsage | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: NodeError | None = None


_decoder = msgspec.json.Decoder(_Completion, strict=False)


def decode_completion(frame: bytes, likeliest: int | None = None) -> Sequence[Event]:
    """Decode one SSE frame, or a whole answer. `likeliest`: how many log-probabilities were
    requested per token, -1: all. Raises WireError.
    """
    if len(frame) <= len(DONE) and frame.strip() == LAST_FRAME:
        return [EndEvent()]
    try:
        said = _decoder.decode(frame.removeprefix(b"data:"))
    except UNREADABLE as error:
        raise WireError(str(error)) from error
    scored = [one.prompt_logprobs for one in said.choices if one.prompt_logprobs]
    return read_chunk(
        NodeChunk(
            choices=tuple(_choice(one, likeliest) for one in said.choices),
            usage=said.usage,
            prompt_logprobs=scored[0] if scored else None,
            kv_transfer_params=said.kv_transfer_params,
            error=said.error,
        )
    )


def _choice(said: _Choice, likeliest: int | None) -> NodeChoice:
    if said.token_ids is None and said.text:
        raise WireError(NO_IDS)
    choice = NodeChoice(said.token_ids or (), said.finish_reason, said.stop_reason)
    if said.logprobs is not None and likeliest is not None:
        choice.logprobs = _content(said.logprobs, likeliest)
    return choice


def _content(said: _Logprobs, likeliest: int) -> NodeLogprobs:
    """vLLM lists the sampled token among the likeliest even if it is not one of them."""
    tops = said.top_logprobs or repeat(None)
    places = zip(said.tokens, said.token_logprobs, tops, strict=False)
    return NodeLogprobs(
        tuple(
            NodeTokenLogprob(token, logprob, top_logprobs=_tops(top or {}, likeliest))
            for token, logprob, top in places
        )
    )


def _tops(said: Mapping[str, float | None], likeliest: int) -> tuple[NodeTopLogprob, ...]:
    known = ((token, logprob) for token, logprob in said.items() if logprob is not None)
    best = sorted(known, key=lambda one: -one[1])
    return tuple(NodeTopLogprob(*one) for one in (best if likeliest < 0 else best[:likeliest]))
