"""A text body becomes `Call`s: one Request, and the leg it is, for every choice."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from api.bodies import ChatBody, CompletionBody, StreamOptions, TextBody
from api.errors import BadRequest, NoText
from api.generator import WHOLE, Leg
from api.messages import for_template
from api.node_sampling import DEFAULT_MAX_TOKENS
from api.sampling import Room, sampling_of, stops_of
from api.served import ReadLeg, Served
from api.stopping import StopStrings
from api.tokenizing import TextCodec
from engine.request import Request, RequestId

SHORT = 2_000  # characters or bytes; encoded before a thread would have begun
MOST_CALLS = 2_048

TOKENIZERS_OWN = frozenset(  # arguments of apply_chat_template
    {
        "chat_template",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_dict",
        "return_assistant_tokens_mask",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)

Tokens = tuple[int, ...]
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Call:
    """What one choice asks of the Generator."""

    request: Request
    leg: Leg = WHOLE


@dataclass(frozen=True, slots=True)
class Asked:
    """One text request, understood. Choice `i` of `calls` answers prompt `i // n`."""

    outer_id: str
    model: str
    calls: Sequence[Call]
    n: int
    codec: TextCodec
    stops: StopStrings
    body: TextBody

    @property
    def options(self) -> StreamOptions:
        """The stream's options, given or not."""
        return self.body.stream_options or StreamOptions()

    @property
    def timings(self) -> bool:
        """Whether the answer is to tell its stages."""
        return self.body.pdserve is not None and bool(self.body.pdserve.timings)


@dataclass(frozen=True, slots=True)
class Asker:
    """Understands the bodies of one door."""

    served: Served
    read_leg: ReadLeg

    async def completion(self, body: CompletionBody, outer_id: str) -> Asked:
        """Raises ApiError."""
        model, codec = self._door(body)
        special = body.add_special_tokens is not False
        given = prompts_of(body.prompt, "prompt")
        if len(given) > MOST_CALLS:
            raise BadRequest(f"more than {MOST_CALLS} prompts in one request", "prompt")

        def encode() -> list[Tokens]:
            return [
                codec.encode(one, special_tokens=special) if isinstance(one, str) else one
                for one in given
            ]

        self._check(codec, [one for one in given if not isinstance(one, str)])
        characters = sum(len(one) for one in given if isinstance(one, str))
        prompts = await aside(characters, encode)
        if not all(prompts):
            raise BadRequest("prompt must not be empty", "prompt")
        return self._asked(body, outer_id, model, codec, prompts)

    async def chat(self, body: ChatBody, outer_id: str, size: int) -> Asked:
        """Raises ApiError. `size` is that of the body, in bytes: so much there is to do."""
        model, codec = self._door(body)
        begin, go_on = body.add_generation_prompt is not False, body.continue_final_message
        if begin and go_on:
            param = "continue_final_message"
            raise BadRequest(f"{param} and add_generation_prompt exclude each other", param)
        template = {
            **_template_kwargs(body),
            "add_generation_prompt": begin,
            "continue_final_message": bool(go_on),
        }
        special = bool(body.add_special_tokens)

        def encode() -> Tokens:
            text = codec.render(for_template(body.messages), template)
            return codec.encode(text, special_tokens=special)

        prompt = await aside(size, encode)
        if not prompt:
            raise BadRequest("the chat template makes nothing of the messages", "messages")
        return self._asked(body, outer_id, model, codec, [prompt])

    def _door(self, body: TextBody) -> tuple[str, TextCodec]:
        if body.stream_options and not body.stream:
            raise BadRequest("stream_options are for streams only", "stream_options")
        model = self.served.name(body.model)
        if self.served.pooling is not None and not self.served.pooling.generates:
            raise BadRequest("This model does not generate text")
        if self.served.codec is None:
            raise NoText("There is no tokenizer here: use /inference/v1/generate")
        return model, self.served.codec

    def _check(self, codec: TextCodec, prompts: Sequence[Tokens]) -> None:
        """Refuse ids that no token has."""
        largest = max((max(tokens, default=0) for tokens in prompts), default=0)
        if largest and largest >= (self.served.vocab_size or codec.size):
            raise BadRequest(f"token id {largest} is out of vocabulary", "prompt")

    def _asked(
        self,
        body: TextBody,
        outer_id: str,
        model: str,
        codec: TextCodec,
        prompts: Sequence[Tokens],
    ) -> Asked:
        n = body.n or 1
        if len(prompts) * n > MOST_CALLS:
            raise BadRequest(f"more than {MOST_CALLS} choices in one request", "n")
        several = len(prompts) * n > 1
        context = self.served.max_model_len()  # a proxy asks all its nodes
        default = None if isinstance(body, ChatBody) else DEFAULT_MAX_TOKENS
        rooms = [Room(context, len(prompt), default) for prompt in prompts]
        calls = [
            self._call(body, outer_id, prompt, room, (i * n + j, j), several=several)
            for i, (prompt, room) in enumerate(zip(prompts, rooms, strict=True))
            for j in range(n)
        ]
        return Asked(outer_id, model, calls, n, codec, stops_of(body), body)

    def _call(
        self,
        body: TextBody,
        outer_id: str,
        prompt: Tokens,
        room: Room,
        place: tuple[int, int],
        *,
        several: bool,
    ) -> Call:
        index, sample_index = place
        leg = self.read_leg(outer_id, body.kv_transfer_params, index)
        sampling = sampling_of(body, room, outer_id, whole=not leg.hold)
        request = Request(
            RequestId(f"{outer_id}-{index}" if several else outer_id),
            prompt,
            msgspec.structs.replace(sampling, sample_index=sample_index),
            cache_salt=body.cache_salt or "",
        )
        return Call(request, leg)


def prompts_of(
    given: str | list[str | int | list[int]] | None, param: str
) -> list[str | Tokens]:
    """One prompt or many, each a text or token ids; `param` is the field they are in."""
    if given is None or given == []:
        raise BadRequest(f"{param} must not be empty", param)
    if isinstance(given, str):
        return [given]
    prompts = [tuple(part) if isinstance(part, list) else part for part in given]
    tokens = tuple(part for part in prompts if isinstance(part, int))
    if not tokens:
        return [part for part in prompts if not isinstance(part, int)]
    if len(tokens) < len(prompts):
        raise BadRequest(f"{param} mixes token ids with texts", param)
    return [tokens]


def _template_kwargs(body: ChatBody) -> dict[str, object]:
    """What a template may be told; what the tokenizer reads itself is not a client's."""
    given = body.chat_template_kwargs or {}
    if taken := TOKENIZERS_OWN.intersection(given):
        param = f"chat_template_kwargs.{min(taken)}"
        raise BadRequest(f"{param} is not supported", param)
    return given


async def aside(size: int, work: Callable[[], Done]) -> Done:
    """In a thread where it would hold up all streams."""
    return work() if size <= SHORT else await asyncio.to_thread(work)
