"""The answer of POST /inference/v1/generate, event by event or as one body. Pure.

Log-probabilities are as vLLM writes them, unless our own proxy asks: then they are lists of
[token, log-probability, rank] under `pdserve`.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from api.generator import (
    BAD_GATEWAY,
    BAD_REQUEST,
    UNAVAILABLE,
    EndEvent,
    Event,
    FailedEvent,
    PromptEvent,
    StageEvent,
    TicketEvent,
    TokenEvent,
)
from api.node_logprobs import (
    NodeLogprobs,
    PromptLogprobs,
    finite_logprobs,
    node_logprobs_of,
    prompt_logprobs_of,
    read_node_logprobs,
    read_prompt_logprobs,
)
from api.wire import UNREADABLE, WireError
from engine.request import FinishReason, Logprobs, Request, RequestId, TokenId
from kv_transfer.errors import MalformedTicket
from kv_transfer.ticket import KvTicket, from_params, to_params

DONE = b"data: [DONE]\n\n"
LAST_FRAME = DONE.strip()
CUT_SHORT = (FinishReason.ABORT, FinishReason.ERROR)


class NodeChoice(msgspec.Struct):
    """New tokens of an answer."""

    token_ids: tuple[TokenId, ...] | None = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    index: int = 0
    logprobs: NodeLogprobs | UnsetType | None = UNSET


class _Details(msgspec.Struct):
    cached_tokens: Annotated[int, Meta(ge=0)] | None = 0


class NodeUsage(msgspec.Struct, omit_defaults=True):
    """Token counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class NodeError(msgspec.Struct):
    """Why the stream ends early; vLLM's has message, code and param."""

    message: str = ""
    code: int = BAD_GATEWAY
    retryable: bool | None = None
    by_peer: bool = False
    param: str | None = None
    parked: bool = False
    no_room: bool = False
    leaving: bool = False


class _Extra(msgspec.Struct, omit_defaults=True):
    """Fields between pdserve's own servers: `prompt` comes before the first token, `stage` when
    a stage is over.
    """

    prompt: PromptEvent | None = None
    stage: StageEvent | None = None
    logprobs: tuple[Logprobs, ...] = ()


class NodeChunk(msgspec.Struct, omit_defaults=True):
    """One SSE frame of an answer, or the whole answer."""

    request_id: str | None = None
    choices: tuple[NodeChoice, ...] | None = None
    usage: NodeUsage | None = None
    prompt_logprobs: PromptLogprobs | None = None
    kv_transfer_params: dict[str, Any] | None = None
    error: NodeError | None = None
    pdserve: _Extra | None = None


_decoder = msgspec.json.Decoder(NodeChunk, strict=False)


def encode_event(
    request_id: RequestId,
    event: Event,
    ticket: KvTicket | None = None,
    *,
    compact: bool = False,
) -> bytes:
    """Encode one SSE frame; the one with a prefill leg's token repeats its `ticket`."""
    if isinstance(event, EndEvent):
        return DONE
    chunk = _chunk(event, ticket, compact=compact)
    chunk.request_id = request_id
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def status_of(failed: FailedEvent) -> int:
    """The HTTP status of the failure."""
    if failed.leaving:
        return UNAVAILABLE
    return BAD_GATEWAY if failed.retryable else BAD_REQUEST


def decode_event(frame: bytes, likeliest: int | None = None) -> Sequence[Event]:
    """Decode one SSE frame; a ticket comes before the tokens of the same frame. `likeliest`: as
    in `read_node_logprobs`.
    """
    if len(frame) <= len(DONE) and frame.strip() == LAST_FRAME:
        return [EndEvent()]
    try:
        return read_chunk(_decoder.decode(frame.removeprefix(b"data:")), likeliest)
    except UNREADABLE as error:
        raise WireError(str(error)) from error


def read_chunk(chunk: NodeChunk, likeliest: int | None = None) -> Sequence[Event]:
    """The events in a frame; raises WireError. `likeliest`: as in `read_node_logprobs`."""
    try:
        ticket = from_params(chunk.kv_transfer_params)
    except MalformedTicket as error:
        raise WireError(str(error)) from error
    events: list[Event] = [] if ticket is None else [TicketEvent(ticket)]
    if chunk.pdserve or chunk.prompt_logprobs or chunk.usage:
        events += _prompt_and_stage(chunk)
    for choice in chunk.choices or ():
        compact = chunk.pdserve.logprobs if chunk.pdserve else ()
        given = choice.logprobs or None
        events += _tokens(choice, compact or read_node_logprobs(given, likeliest))
    if failed := chunk.error:
        retryable = failed.code >= 500 if failed.retryable is None else failed.retryable
        events.append(
            FailedEvent(
                *(failed.message, retryable, failed.by_peer, failed.param),
                parked=failed.parked,
                no_room=failed.no_room,
                leaving=failed.leaving,
            )
        )
    return events


def encode_answer(request: Request, events: Sequence[Event], model: str, created: int) -> bytes:
    """The unstreamed answer: all tokens of one choice, and the last ticket if there is one."""
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    tickets = [event.ticket for event in events if isinstance(event, TicketEvent)]
    prompts = [event for event in events if isinstance(event, PromptEvent)]
    scored = [event.logprobs for event in prompts if event.logprobs]
    said = [token for event in tokens for token in event.tokens]
    ranked = [place for event in tokens for place in event.logprobs]
    answer = {
        "request_id": request.request_id,
        "model": model,
        "created": created,
        "output_mode": "tokens",
        "choices": [
            {
                "index": 0,
                "token_ids": said,
                # a prefill leg is asked for one token
                "finish_reason": tokens[-1].finish or FinishReason.LENGTH,
                "stop_reason": tokens[-1].stop_reason,
                "logprobs": node_logprobs_of(ranked) if ranked else None,
            }
        ],
        "usage": _usage(len(request.tokens), len(said), prompts),
        "prompt_logprobs": prompt_logprobs_of(scored[0]) if scored else None,
        "kv_transfer_params": to_params(tickets[-1]) if tickets else None,
    }
    return msgspec.json.encode(answer)


def _usage(prompt: int, said: int, prompts: Sequence[PromptEvent]) -> NodeUsage:
    cached = prompts[0].cached_tokens if prompts else 0
    return NodeUsage(prompt, said, prompt + said, _Details(cached))


def _chunk(
    event: TicketEvent | PromptEvent | TokenEvent | StageEvent | FailedEvent,
    ticket: KvTicket | None,
    *,
    compact: bool,
) -> NodeChunk:
    match event:
        case TicketEvent(ticket=early):
            return NodeChunk(choices=(), kv_transfer_params=to_params(early))
        case PromptEvent():
            return _prompt_chunk(event, compact=compact)
        case StageEvent():
            return NodeChunk(choices=(), pdserve=_Extra(stage=event))
        case TokenEvent():
            chunk = _token_chunk(event, compact=compact)
            chunk.kv_transfer_params = to_params(ticket) if ticket else None
            return chunk
        case FailedEvent():
            said = event.reason, status_of(event), event.retryable, event.by_peer, event.param
            return NodeChunk(error=NodeError(*said, event.parked, event.no_room, event.leaving))


def _prompt_chunk(event: PromptEvent, *, compact: bool) -> NodeChunk:
    if compact:
        said = msgspec.structs.replace(event, logprobs=finite_logprobs(event.logprobs))
        return NodeChunk(choices=(), pdserve=_Extra(prompt=said))
    said = msgspec.structs.replace(event, logprobs=())
    chunk = NodeChunk(choices=(), pdserve=_Extra(prompt=said))
    chunk.prompt_logprobs = prompt_logprobs_of(event.logprobs) if event.logprobs else None
    return chunk


def _token_chunk(event: TokenEvent, *, compact: bool) -> NodeChunk:
    choice = NodeChoice(event.tokens, event.finish, event.stop_reason)
    if event.logprobs and compact:
        return NodeChunk(
            choices=(choice,), pdserve=_Extra(logprobs=finite_logprobs(event.logprobs))
        )
    if event.logprobs:
        choice.logprobs = node_logprobs_of(event.logprobs)
    return NodeChunk(choices=(choice,))


def _prompt_and_stage(chunk: NodeChunk) -> Iterator[Event]:
    """The chunk's prompt and stage events; another server's chunk may give cached tokens and
    log-probabilities of the prompt.
    """
    extra, foreign = chunk.pdserve or _Extra(), read_prompt_logprobs(chunk.prompt_logprobs)
    details = chunk.usage and chunk.usage.prompt_tokens_details
    cached = details.cached_tokens if details else None
    if extra.prompt and not foreign:
        yield extra.prompt
    elif foreign or cached is not None:
        yield PromptEvent(extra.prompt.cached_tokens if extra.prompt else cached or 0, foreign)
    if extra.stage:
        yield extra.stage


def _tokens(choice: NodeChoice, ranked: tuple[Logprobs, ...]) -> list[Event]:
    """The events of a choice; its end may come without a token. A finish that means that the
    answer was cut short becomes a FailedEvent, after the tokens.
    """
    tokens, finish = choice.token_ids or (), choice.finish_reason
    reason = choice.stop_reason if isinstance(choice.stop_reason, int) else None
    if ranked and len(ranked) != len(tokens):
        raise WireError(f"{len(ranked)} log-probabilities for {len(tokens)} tokens")
    if finish in CUT_SHORT:
        failed = FailedEvent(f"the answer was cut short: {finish}", retryable=True)
        return [TokenEvent(tokens, logprobs=ranked), failed] if tokens else [failed]
    return [TokenEvent(tokens, finish, reason, ranked)] if tokens or finish else []
