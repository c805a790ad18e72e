"""One text request, understood: a Request for every choice, and the leg it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from api.bodies import ChatBody, StreamOptions, TextBody
from api.errors import BadRequest
from api.gate import Visit
from api.generator import WHOLE, Leg
from api.node_sampling import DEFAULT_MAX_TOKENS
from api.reasoning.thinking import Thinking
from api.sampling import Room, limited, shape_of, wanted_tokens
from api.served import ReadLeg, Served
from api.text.stopping import StopStrings
from api.text.tokenizing import TextCodec
from api.tools.calling import Calling
from engine.request import Grammar, Marks, Request, RequestId, Sampling

MOST_CALLS = 2_048
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """What one choice asks of the Generator."""

    request: Request
    leg: Leg = WHOLE

    def held_behind(self, marks: Marks) -> "Call":
        """The same, with a grammar that begins behind reasoning."""
        sampling = replace(self.request.sampling, grammar_behind=marks)
        return Call(replace(self.request, sampling=sampling), self.leg)

    def held_to(self, grammar: Grammar) -> "Call":
        """The same, with another grammar."""
        sampling = replace(self.request.sampling, grammar=grammar)
        return Call(replace(self.request, sampling=sampling), self.leg)


@dataclass(frozen=True, slots=True)
class Asked:
    """One text request. Choice `i` of `calls` answers prompt `i // n`.

    `calling`: how calls of tools are read out of the answers; None: they are text. `thinking`
    says the same of reasoning.
    """

    outer_id: str
    model: str
    calls: Sequence[Call]
    n: int
    codec: TextCodec
    stops: StopStrings
    body: TextBody
    calling: Calling | None = None
    thinking: Thinking | None = None

    @property
    def options(self) -> StreamOptions:
        """The stream's options, given or not."""
        return self.body.stream_options or StreamOptions()

    @property
    def visit(self) -> Visit:
        """What all of it asks for together; a prompt counts once for all its choices."""
        asked = [call.request for call in self.calls]
        return Visit(
            sum(len(one.prompt) for one in asked[:: self.n]),
            sum(one.sampling.max_tokens for one in asked),
            choices=len(asked),
            priority=asked[0].priority,
            timeout_s=self.body.timeout,
            model=asked[0].model,
        )

    @property
    def timings(self) -> bool:
        """Whether the answer is to tell its stages."""
        return self.body.pdserve is not None and bool(self.body.pdserve.timings)


@dataclass(frozen=True, slots=True)
class Caller:
    """Makes the calls of one body."""

    served: Served
    read_leg: ReadLeg
    body: TextBody
    outer_id: str

    def calls(self, prompts: Sequence[Tokens]) -> list[Call]:
        """For `n` choices of each prompt; raises BadRequest."""
        n = self.body.n or 1
        if len(prompts) * n > MOST_CALLS:
            raise BadRequest(f"more than {MOST_CALLS} choices in one request", "n")
        shape = shape_of(self.body, self.outer_id, self.served)
        context = self.served.max_model_len()  # a proxy asks all its nodes
        default = self.served.defaults.max_new_tokens or _usual_tokens(self.body)
        calls = list[Call]()
        for prompt in prompts:
            kept = _truncated(prompt, self.body, context)
            room = Room(context, len(kept), default)
            for sample in range(n):
                calls.append(self._call(len(calls), sample, kept, shape, room))
        return calls if len(calls) == 1 else [_numbered(one) for one in enumerate(calls)]

    def _call(
        self, index: int, sample: int, prompt: Tokens, shape: Sampling, room: Room
    ) -> Call:
        leg = self.read_leg(self.outer_id, self.body.kv_transfer_params, index)
        sampling = limited(shape, self.body, room, whole=not leg.hold)
        if sample:
            sampling = replace(sampling, sample_index=sample)
        if sample and not self.body.echoes:  # the first choice tells of the prompt for all
            sampling = replace(sampling, prompt_logprobs=None)
        request = Request(
            RequestId(self.outer_id),
            prompt,
            sampling,
            priority=self.body.priority or 0,
            cache_salt=self.body.cache_salt or "",
            model=self.served.key,
            session=self.body.session,
        )
        return Call(request, leg)


def _numbered(placed: tuple[int, Call]) -> Call:
    index, call = placed
    name = RequestId(f"{call.request.request_id}-{index}")
    return Call(replace(call.request, request_id=name), call.leg)


def _usual_tokens(body: TextBody) -> int | None:
    """A chat has all there is."""
    return None if isinstance(body, ChatBody) else DEFAULT_MAX_TOKENS


def _truncated(prompt: Tokens, body: TextBody, context: int | None) -> Tokens:
    """The last tokens of a prompt, as many as asked for: -1 is as many as leave room."""
    most = body.truncate_prompt_tokens
    if most is None or (most < 0 and context is None):
        return prompt
    if most == 0:
        raise BadRequest("truncate_prompt_tokens must not be 0", "truncate_prompt_tokens")
    if most < 0 and context is not None:
        most = max(context - (wanted_tokens(body) or 1), 1)
    return prompt[-most:]
