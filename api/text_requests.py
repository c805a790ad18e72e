"""A parsed text request: one call of the Generator for each of its choices."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec
from msgspec.structs import replace

from api.bodies import ChatBody, StreamOptions, TextBody
from api.errors import BadRequest
from api.gate import AdmissionRequest
from api.generator import WHOLE, Leg
from api.node_sampling import DEFAULT_MAX_TOKENS
from api.reasoning.thinking import Thinking
from api.sampling import TokenBudget, requested_max_tokens, shared_sampling, with_length_limits
from api.served import LegReader, ServedModel
from api.text.stopping import StopStrings
from api.text.tokenizing import TextCodec
from api.tools.calling import ToolCalling
from engine.request import Grammar, ReasoningMarks, Request, RequestId, Sampling

MOST_CALLS = 2_048
LARGEST_SHAPES = 16 << 20  # bytes, of the sampling parameters of all calls of one request
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GeneratorCall:
    """The arguments with which one choice calls the Generator."""

    request: Request
    leg: Leg = WHOLE

    def with_grammar_after(self, marks: ReasoningMarks) -> "GeneratorCall":
        """The same call; its grammar applies after one of these reasoning end marks."""
        sampling = replace(self.request.sampling, grammar_behind=marks)
        return GeneratorCall(replace(self.request, sampling=sampling), self.leg)

    def with_grammar(self, grammar: Grammar) -> "GeneratorCall":
        """The same call, constrained by this grammar."""
        sampling = replace(self.request.sampling, grammar=grammar)
        return GeneratorCall(replace(self.request, sampling=sampling), self.leg)


@dataclass(frozen=True, slots=True)
class TextRequest:
    """A text request that was parsed and checked. Choice `i` answers prompt `i // n`.

    `calling` parses tool calls out of the answers, `thinking` parses reasoning; None: the
    model's output stays text.
    """

    outer_id: str
    model: str
    calls: Sequence[GeneratorCall]
    n: int
    codec: TextCodec
    stop_strings: StopStrings
    body: TextBody
    calling: ToolCalling | None = None
    thinking: Thinking | None = None

    @property
    def options(self) -> StreamOptions:
        """The client's stream options, or the defaults."""
        return self.body.stream_options or StreamOptions()

    @property
    def admission_request(self) -> AdmissionRequest:
        """The size of all choices together; a prompt counts once for all its choices."""
        requests = [call.request for call in self.calls]
        return AdmissionRequest(
            sum(len(one.prompt) for one in requests[:: self.n]),
            sum(one.sampling.max_tokens for one in requests),
            choices=len(requests),
            priority=requests[0].priority,
            timeout_s=self.body.timeout,
            model=requests[0].model,
        )

    @property
    def timings(self) -> bool:
        """Whether the client wants the timings of the request's stages."""
        return self.body.pdserve is not None and bool(self.body.pdserve.timings)


@dataclass(frozen=True, slots=True)
class CallBuilder:
    """Turns one body and its prompts, each tokenized and `kept`, into calls of the Generator.

    It is made before they are tokenized: what needs no tokens is refused first. `context` is
    that of the model when it was made.
    """

    served: ServedModel
    read_leg: LegReader
    body: TextBody
    outer_id: str
    shape: Sampling
    context: int | None

    @classmethod
    def of(
        cls,
        served: ServedModel,
        read_leg: LegReader,
        body: TextBody,
        outer_id: str,
        num_prompts: int = 1,
    ) -> Self:
        """For a body with so many prompts; raises BadRequest."""
        if (choices := num_prompts * (body.n or 1)) > MOST_CALLS:
            raise BadRequest(f"more than {MOST_CALLS} choices in one request", "n")
        shape = shared_sampling(body, outer_id, served)
        _check_size(shape, choices)
        context = served.max_model_len()  # a proxy asks all its nodes
        return cls(served, read_leg, body, outer_id, shape, context)

    def kept(self, prompt: Tokens) -> Tokens:
        """The part of a prompt that is kept; raises ContextTooLong if it has no room."""
        kept = _truncated(prompt, self.body, self.context)
        self._room(kept).max_tokens(self.body)
        return kept

    def build(self, prompts: Sequence[Tokens]) -> list[GeneratorCall]:
        """One call for each of the `n` choices of each prompt; raises BadRequest."""
        calls = list[GeneratorCall]()
        for prompt in prompts:
            room = self._room(prompt)
            for sample in range(self.body.n or 1):
                calls.append(self._call(len(calls), sample, prompt, room))
        return (
            calls if len(calls) == 1 else [_with_choice_index(one) for one in enumerate(calls)]
        )

    def _room(self, prompt: Tokens) -> TokenBudget:
        default = self.served.defaults.max_new_tokens or _default_max_tokens(self.body)
        return TokenBudget(self.context, len(prompt), default)

    def _call(
        self, index: int, sample: int, prompt: Tokens, room: TokenBudget
    ) -> GeneratorCall:
        leg = self.read_leg(self.outer_id, self.body.kv_transfer_params, index)
        if self.shape.prompt_logprobs is not None:
            # KV that is fetched does not tell them
            leg = Leg(ticket=leg.ticket, recompute=True) if leg.ticket else WHOLE
        sampling = with_length_limits(self.shape, self.body, room, whole=not leg.hold)
        if sample:
            sampling = replace(sampling, sample_index=sample)
        if (
            sample and not self.body.echoes_prompt
        ):  # for all choices, the first one reports the prompt
            sampling = replace(sampling, prompt_logprobs=None)
        request = Request(
            RequestId(self.outer_id),
            prompt,
            sampling,
            priority=self.body.priority or 0,
            cache_salt=self.body.cache_salt or "",
            model=self.served.key,
            session=self.body.session,
            adapter=self.served.adapter(self.body.model),
        )
        return GeneratorCall(request, leg)


def _check_size(shape: Sampling, calls: int) -> None:
    """Refuse large parameters if there are many calls: each has its own copy of them, which
    would hold up the nodes. Raises BadRequest.
    """
    if calls > 1 and (size := len(msgspec.json.encode(shape))) * calls > LARGEST_SHAPES:
        raise BadRequest(
            f"the sampling parameters of {calls} choices have {size} bytes each, and more than "
            f"{LARGEST_SHAPES} together: ask for fewer choices, or make grammar, bad_words, "
            "logit_bias and lists of token ids shorter"
        )


def _with_choice_index(placed: tuple[int, GeneratorCall]) -> GeneratorCall:
    index, call = placed
    name = RequestId(f"{call.request.request_id}-{index}")
    return GeneratorCall(replace(call.request, request_id=name), call.leg)


def _default_max_tokens(body: TextBody) -> int | None:
    """The limit of a body that has none; None (chats): all that the context has room for."""
    return None if isinstance(body, ChatBody) else DEFAULT_MAX_TOKENS


def _truncated(prompt: Tokens, body: TextBody, context: int | None) -> Tokens:
    """The prompt's last `truncate_prompt_tokens` tokens, or its first if it is truncated from
    the right; -1: as many as the context takes.
    """
    most = body.truncate_prompt_tokens
    if most is None or (most < 0 and context is None):
        return prompt
    if most == 0:
        raise BadRequest("truncate_prompt_tokens must not be 0", "truncate_prompt_tokens")
    if most < 0 and context is not None:
        most = max(context - (requested_max_tokens(body) or 1), 1)
    return prompt[:most] if body.truncation_side == "right" else prompt[-most:]
