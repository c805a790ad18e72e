"""vllm.Inference: generation for vLLM's router and Dynamo's sidecar."""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf.json_format import MessageToDict
from msgspec import UNSET

from api.answering import Answer
from api.choices import ChoiceState, TextPiece, join_pieces
from api.errors import BadRequest
from api.grpc.calls import (
    CallAborted,
    Completions,
    Context,
    RequestForm,
    copy_ids,
    refuse_unknown,
    without_zeros,
)
from api.grpc.protos import inference_pb2 as pb
from api.usage import params_of
from engine.request import FinishReason, Logprobs

DEFAULT_MAX_TOKENS = 20
ALL = -1
SEVERAL = "num_sequences: Generate has room for one sequence, GenerateStream for several"
REASONS = {
    FinishReason.STOP: pb.FinishInfo.STOP,
    FinishReason.LENGTH: pb.FinishInfo.LENGTH,
}


@dataclass(frozen=True, slots=True)
class Inference:
    """Serves the calls of vllm.Inference."""

    completions: Completions

    async def generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> pb.GenerateResponse:
        """One answer, whole."""
        replies = [reply async for reply in self._replies(request, context, whole=True)]
        return replies[0]

    async def generate_stream(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """One or several answers, piece by piece."""
        async with aclosing(self._replies(request, context, whole=False)) as replies:
            async for reply in replies:
                yield reply

    async def _replies(
        self, request: pb.GenerateRequest, context: Context, *, whole: bool
    ) -> AsyncGenerator[pb.GenerateResponse]:
        form = ONE_ANSWER if whole else ANSWERS
        try:
            async with self.completions.answered(request, form, context) as (answer, pieces):
                writer = _Writer(answer, request.response)
                if whole:
                    yield writer.reply(join_pieces([piece async for piece in pieces]))
                    return
                async for piece in pieces:
                    for reply in writer.replies(piece):
                        yield reply
        except CallAborted:
            ended = pb.FinishInfo(finish_reason=pb.FinishInfo.ABORTED)
            yield pb.GenerateResponse(outputs=pb.SequenceOutput(finish_info=ended))


def _only_completion_of(request: pb.GenerateRequest, context: int | None) -> dict[str, object]:
    if request.sampling.num_sequences > 1:
        raise BadRequest(SEVERAL, "num_sequences")
    return completion_of(request, context)


def completion_of(request: pb.GenerateRequest, context: int | None = None) -> dict[str, object]:
    """See RequestForm."""
    _refuse_unserved(request)
    truncates = request.truncate_prompt_tokens != 0
    prompt: object = request.text
    if request.HasField("token_ids"):
        prompt = copy_ids(request.token_ids.ids, context, truncates=truncates)
    stopping, sampling = request.stopping, request.sampling
    body = without_zeros(
        {
            "model": request.lora_name or request.model,
            "request_id": request.request_id,
            "priority": request.priority,
            "session_id": request.session_id,
            "truncate_prompt_tokens": request.truncate_prompt_tokens,
            "n": sampling.num_sequences,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "max_tokens": stopping.max_new_tokens or DEFAULT_MAX_TOKENS,
            "min_tokens": stopping.min_new_tokens,
            "stop_token_ids": list(stopping.stop_token_ids),
            "stop": list(stopping.stop_strings),
            "include_stop_str_in_output": stopping.include_stop_strings,
            "ignore_eos": stopping.ignore_eos,
            **_decoding(request.decoding),
            **_cache(request.kv),
        }
    )
    options = request.response
    if request.HasField("temperature"):
        body["temperature"] = request.temperature
    if sampling.HasField("seed"):
        body["seed"] = sampling.seed
    if options.HasField("output_text") and not options.output_text:
        body["return_token_ids"] = True  # so no tokenizer is needed
    if options.HasField("skip_special_tokens"):
        body["skip_special_tokens"] = options.skip_special_tokens
    for name, told, wanted in (
        ("logprobs", options.output_logprobs, _candidates(options, "output_candidates")),
        ("prompt_logprobs", options.prompt_logprobs, _candidates(options, "prompt_candidates")),
    ):
        if told or wanted is not None:
            body[name] = wanted or 0
    return {**body, "prompt": prompt}


def _refuse_unserved(request: pb.GenerateRequest) -> None:
    if request.media:
        raise BadRequest("media: this server reads text only", "media")
    for name in ("sampling", "decoding", "stopping", "response"):
        refuse_unknown(name, getattr(request, name))


def _decoding(decoding: pb.DecodingParameters) -> dict[str, object]:
    kind = decoding.WhichOneof("structured_output")
    said = None if kind is None else getattr(decoding, kind)
    if isinstance(said, pb.DecodingParameters.StringChoices):
        said = list(said.choices)
    return {
        "presence_penalty": decoding.presence_penalty,
        "frequency_penalty": decoding.frequency_penalty,
        "repetition_penalty": decoding.repetition_penalty,
        "logit_bias": {str(token): bias for token, bias in decoding.logit_bias.items()},
        "allowed_token_ids": list(decoding.allowed_token_ids),
        "structured_outputs": {kind: said} if kind else None,
    }


def _cache(kv: pb.KVCacheParameters) -> dict[str, object]:
    if kv.HasField("ec_transfer_params"):
        raise BadRequest("ec_transfer_params: there is no encoder here", "ec_transfer_params")
    return {"cache_salt": kv.cache_salt, "kv_transfer_params": _params(kv)}


def _params(kv: pb.KVCacheParameters) -> dict[str, Any]:
    try:
        return MessageToDict(kv.kv_transfer_params)
    except ValueError as error:  # NaN, infinity
        raise BadRequest(f"kv_transfer_params: {error}", "kv_transfer_params") from error


def _kv_named_by(request: pb.GenerateRequest) -> dict[str, object]:
    """Of the body of a request that has none: what names KV."""
    named = {"request_id": request.request_id, "n": request.sampling.num_sequences}
    try:
        return {**named, "kv_transfer_params": _params(request.kv)}
    except BadRequest:
        return {}


ANSWERS: RequestForm[pb.GenerateRequest] = RequestForm(
    lambda one: one.request_id, completion_of, _kv_named_by
)
ONE_ANSWER = replace(ANSWERS, completion_of=_only_completion_of)


def _candidates(options: pb.ResponseOptions, name: str) -> int | None:
    """How many of the likeliest tokens are asked for; raises BadRequest."""
    if not options.HasField(name):
        return None
    candidates: pb.CandidateTokens = getattr(options, name)
    if candidates.HasField("token_ids"):
        raise BadRequest(f"{name}: log-probabilities of chosen tokens are not told", name)
    return ALL if candidates.all else candidates.top_n


@dataclass(slots=True)
class _Writer:
    """Writes the replies of one call; the first tells of the prompt."""

    answer: Answer
    options: pb.ResponseOptions
    begun: bool = False
    held: list[TextPiece] = field(default_factory=list)

    def replies(self, piece: TextPiece) -> Iterator[pb.GenerateResponse]:
        """The replies for a piece; later if the log-probabilities of the prompt, which the
        first has to tell, are still to come with the first choice.
        """
        self.held.append(piece)
        first = self.answer.choices[0]
        if self.begun or not piece.index or first.call.request.sampling.prompt_logprobs is None:
            yield from map(self.reply, self.held)
            self.held.clear()

    def reply(self, piece: TextPiece) -> pb.GenerateResponse:
        """The reply for a piece."""
        told = None if self.begun else self._prompt(self.answer.choices[0])
        self.begun = True
        return pb.GenerateResponse(prompt_info=told, outputs=self._output(piece))

    def _prompt(self, choice: ChoiceState) -> pb.PromptInfo:
        prompt, options = choice.call.request.prompt, self.options
        told = _Told.of(choice.prompt_logprobs)
        return pb.PromptInfo(
            num_prompt_tokens=len(prompt),
            token_ids=prompt if options.prompt_token_ids else (),
            logprobs=told.logprobs,
            ranks=told.ranks,
            candidate_tokens=told.candidates,
        )

    def _output(self, piece: TextPiece) -> pb.SequenceOutput:
        options, told = self.options, _Told.of(one.ranked for one in piece.scored_tokens)
        text = options.output_text if options.HasField("output_text") else True
        return pb.SequenceOutput(
            index=piece.index,
            text=piece.text if text else "",
            num_tokens=len(piece.tokens),
            token_ids=piece.tokens if options.output_token_ids else (),
            logprobs=told.logprobs,
            ranks=told.ranks,
            candidate_tokens=told.candidates,
            finish_info=self._finish(piece) if piece.finish else None,
        )

    def _finish(self, piece: TextPiece) -> pb.FinishInfo:
        assert piece.finish is not None
        choice, reason = self.answer.choices[piece.index], piece.stop_reason
        made = pb.FinishInfo(
            num_output_tokens=piece.num_tokens,
            finish_reason=REASONS[piece.finish],
            num_cached_tokens=choice.cached_tokens,
        )
        if isinstance(reason, str):
            made.stop_string = reason
        elif reason is not None:
            made.stop_token_id = reason
        elif piece.finish is FinishReason.STOP and piece.tokens:
            made.eos_token_id = piece.tokens[-1]
        if (params := params_of(choice)) is not UNSET:
            made.kv_transfer_params.update(params)
        return made


@dataclass(frozen=True, slots=True)
class _Told:
    """Log-probabilities and ranks of tokens, and those of the likeliest beside them."""

    logprobs: Sequence[float]
    ranks: Sequence[int]
    candidates: Sequence[pb.CandidateTokenInfo]

    @classmethod
    def of(cls, places: Iterable[Logprobs]) -> "_Told":
        ranked = [place for place in places if place]
        others = list(_candidate_infos(ranked)) if any(len(one) > 1 for one in ranked) else []
        firsts = [place[0] for place in ranked]
        return cls([one.logprob for one in firsts], [one.rank for one in firsts], others)


def _candidate_infos(places: Iterable[Logprobs]) -> Iterator[pb.CandidateTokenInfo]:
    info = pb.CandidateTokenInfo.TokenInfo
    for _, *likeliest in places:
        tokens = [info(id=one.token, logprob=one.logprob, rank=one.rank) for one in likeliest]
        yield pb.CandidateTokenInfo(tokens=tokens)
