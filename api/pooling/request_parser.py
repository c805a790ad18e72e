"""Parses pooling bodies (embeddings, scores, classes) to PoolingRequests with token ids."""

from collections.abc import Sequence
from dataclasses import dataclass

from api.encoding import run_off_loop
from api.errors import BadRequest, ContextTooLong
from api.pooling.bodies import Input, PoolingBody
from api.pooling.encoding import EncodedInput, InputEncoder, Tokens
from api.prompts import prompts_of
from api.served import ServedModel
from engine.request import PoolingRequest, PoolingTask, RequestId

MOST_INPUTS = 2_048


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    """The task for all inputs of one body."""

    task: PoolingTask
    dimensions: int | None = None


@dataclass(frozen=True, slots=True)
class PoolingRequestParser:
    """Parses the inputs of bodies for one served model."""

    served: ServedModel

    def check(self, task: PoolingTask, param: str | None = None) -> None:
        """Raises BadRequest for a task that the model is known not to support."""
        facts = self.served.pooling
        if facts is not None and task not in facts.tasks:
            can = " and ".join(facts.tasks)
            raise BadRequest(f"The model does not support task {task}; it does {can}", param)

    async def inputs(
        self,
        body: PoolingBody,
        given: Input,
        wanted: PoolingSpec,
        outer_id: str,
        segments: Sequence[Sequence[int]] = (),
    ) -> list[PoolingRequest]:
        """One request for each input; raises ApiError. Only token ids may have `segments`."""
        prompts = prompts_of(given, "input", MOST_INPUTS)
        encoded = await self._encode(body, prompts, "input")
        if segments:
            encoded = _with_segments(encoded, segments)
        return self._requests(body, encoded, wanted, outer_id)

    async def texts(
        self, body: PoolingBody, texts: Sequence[str], outer_id: str
    ) -> list[PoolingRequest]:
        """One embedding request for each text; raises ApiError."""
        encoded = await self._encode(body, texts)
        return self._requests(body, encoded, PoolingSpec("embed"), outer_id)

    async def _encode(
        self, body: PoolingBody, prompts: Sequence[str | Tokens], param: str | None = None
    ) -> Sequence[EncodedInput]:
        """`param` is the body's field of the inputs, if there is just one."""
        encoder = self._encoder(body)

        def encode_one(one: str | Tokens) -> EncodedInput:
            if isinstance(one, str):
                return encoder.text(one)
            return EncodedInput(encoder.cut(one))

        def encode() -> list[EncodedInput]:
            return [self._checked(encode_one(one), encoder.context, param) for one in prompts]

        return await run_off_loop(_characters(prompts), encode, self.served.codec)

    async def pairs(
        self, body: PoolingBody, texts: Sequence[tuple[str, str]], outer_id: str
    ) -> list[PoolingRequest]:
        """One request for each pair, which a classifier reads as one prompt."""
        encoder = self._encoder(body)

        def encode() -> list[EncodedInput]:
            return [self._checked(encoder.pair(*pair), encoder.context) for pair in texts]

        characters = sum(len(one) + len(two) for one, two in texts)
        encoded = await run_off_loop(characters, encode, self.served.codec)
        return self._requests(body, encoded, PoolingSpec("classify"), outer_id)

    def _requests(
        self,
        body: PoolingBody,
        encoded: Sequence[EncodedInput],
        wanted: PoolingSpec,
        outer_id: str,
    ) -> list[PoolingRequest]:
        return [
            PoolingRequest(
                RequestId(f"{outer_id}-{index}" if len(encoded) > 1 else outer_id),
                one.tokens,
                wanted.task,
                body.use_activation is not False,
                wanted.dimensions,
                one.token_types,
                body.priority or 0,
                body.cache_salt or "",
                self.served.key,
            )
            for index, one in enumerate(encoded)
        ]

    def _encoder(self, body: PoolingBody) -> InputEncoder:
        special, side = body.add_special_tokens is not False, body.truncation_side or "right"
        context = self.served.max_model_len()
        return InputEncoder(self.served.codec, self._most(body), context, side, special)

    def _most(self, body: PoolingBody) -> int | None:
        wanted, context = body.truncate_prompt_tokens, self.served.max_model_len()
        param = "truncate_prompt_tokens"
        if wanted == 0:
            raise BadRequest(f"{param} must be -1, or 1 and more", param)
        if wanted is None or wanted == -1:
            return context if wanted else None
        if context is not None and wanted > context:
            raise BadRequest(f"{param} {wanted} is more than the model's {context}", param)
        return wanted

    def _checked(
        self, one: EncodedInput, context: int | None, param: str | None = None
    ) -> EncodedInput:
        """The input, before any further one is encoded; raises ContextTooLong, and BadRequest
        for token ids outside the vocabulary. The `context` is not asked for here: nodes may
        come and go, and this may run in a thread.
        """
        if not one.tokens:
            raise BadRequest(f"{param or 'a text'} must not be empty", param)
        length = len(one.tokens)
        if context is not None and length > context:
            raise ContextTooLong(
                f"This model's maximum context length is {context} tokens. However, you "
                f"requested {length} tokens in the input. Please reduce its length, or ask "
                "for truncate_prompt_tokens.",
                param,
            )
        size = self.served.vocab_size or (
            self.served.codec.num_token_ids if self.served.codec else None
        )
        if size is not None and max(one.tokens) >= size:
            raise BadRequest(f"token id {max(one.tokens)} is out of vocabulary", param)
        return one


def _characters(prompts: Sequence[object]) -> int:
    return sum(len(one) for one in prompts if isinstance(one, str))


def _with_segments(
    encoded: Sequence[EncodedInput], segments: Sequence[Sequence[int]]
) -> list[EncodedInput]:
    param = "pdserve.token_types"
    if [len(one) for one in segments] != [len(one.tokens) for one in encoded]:
        raise BadRequest(f"{param} must have one for each token of each input", param)
    return [
        EncodedInput(one.tokens, tuple(types))
        for one, types in zip(encoded, segments, strict=True)
    ]
