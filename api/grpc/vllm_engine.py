"""vllm.grpc.engine.VllmEngine: generation for the SMG router."""

import datetime
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass

import grpc
import msgspec
from msgspec import UNSET

from api.answering import Answer
from api.choices import TextPiece, join_pieces
from api.grpc.cache_feed import CacheFeed
from api.grpc.calls import CallAborted, Completions, Context
from api.grpc.facts import ServerFacts
from api.grpc.kv_events import subscription
from api.grpc.protos import kv_events_pb2, tokenizer_pb2
from api.grpc.protos import vllm_engine_pb2 as pb
from api.grpc.tokenizer_archive import NoTokenizer, TokenizerArchive
from api.grpc.vllm_requests import FORM
from api.usage import params_of
from api.version import own_version
from engine.request import Logprobs

SERVER_TYPE, CONNECTOR = "vllm-grpc", "NixlConnector"
"""vLLM's names: by the second SMG knows how KV is handed over, whatever moves it here."""
CHUNK = 2**16


@dataclass(frozen=True, slots=True)
class VllmEngine:
    """Serves the calls of VllmEngine. Where a request has no limit, `completions` have the
    context's. `cache_feed` is None if nobody is told what the prefix cache has.
    """

    completions: Completions
    facts: ServerFacts
    tokenizer: TokenizerArchive
    cache_feed: CacheFeed | None

    async def generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse]:
        """One or several answers, whole or piece by piece."""
        try:
            async with self.completions.answered(request, FORM, context) as (answer, pieces):
                writer = _Writer(answer, streams=request.stream)
                async for piece in pieces:
                    for reply in writer.replies(piece):
                        yield reply
        except CallAborted:
            yield pb.GenerateResponse(complete=pb.GenerateComplete(finish_reason="abort"))

    async def health_check(
        self, _request: pb.HealthCheckRequest, _context: Context
    ) -> pb.HealthCheckResponse:
        """Whether the engine is healthy."""
        trouble = self.facts.trouble()
        return pb.HealthCheckResponse(healthy=trouble is None, message=trouble or "ok")

    async def abort(self, request: pb.AbortRequest, _context: Context) -> pb.AbortResponse:
        """End calls by their ids."""
        self.completions.running.abort(request.request_ids)
        return pb.AbortResponse()

    async def get_model_info(
        self, _request: pb.GetModelInfoRequest, _context: Context
    ) -> pb.GetModelInfoResponse:
        """The model, and where its tokenizer is."""
        facts = self.facts
        return pb.GetModelInfoResponse(
            model_path=facts.model,
            is_generation=facts.generates,
            max_context_length=facts.max_model_len,
            vocab_size=facts.vocab_size,
            served_model_name=facts.names[0],
            tokenizer_path=facts.tokenizer,
            model_type=facts.model_type,
            architectures=facts.architectures,
            max_req_input_len=facts.max_model_len - 1,
            default_sampling_params_json=facts.default_sampling_json,
        )

    async def get_server_info(
        self, _request: pb.GetServerInfoRequest, _context: Context
    ) -> pb.GetServerInfoResponse:
        """What a router has to know before it pairs this node with another."""
        facts = self.facts
        return pb.GetServerInfoResponse(
            active_requests=len(self.completions.running),
            uptime_seconds=time.time() - facts.started,
            server_type=SERVER_TYPE,
            kv_connector=CONNECTOR,
            kv_role=facts.kv_role(),
            kv_engine_id=facts.instance_id,
            data_parallel_size=1,
            kv_cache_dtype=facts.kv_dtype,
            block_size=facts.block_size,
            model_dtype=f"torch.{facts.dtype}",
            pairing_protocol=facts.fingerprint,
            max_num_seqs=facts.max_num_seqs,
        )

    async def get_loads(
        self, _request: pb.GetLoadsRequest, _context: Context
    ) -> pb.GetLoadsResponse:
        """How busy the engine is."""
        load, size = self.facts.load(), self.facts.block_size
        used = load.total_blocks - load.free_blocks
        now = datetime.datetime.now(datetime.UTC)
        ours = pb.SchedulerLoad(
            num_running_reqs=load.running,
            num_waiting_reqs=load.waiting,
            num_total_reqs=load.running + load.waiting,
            num_used_tokens=used * size,
            max_total_num_tokens=load.total_blocks * size,
            token_usage=used / max(1, load.total_blocks),
            max_running_requests=self.facts.max_num_seqs,
        )
        return pb.GetLoadsResponse(
            timestamp=now.isoformat(), version=own_version(), dp_rank_count=1, loads=[ours]
        )

    async def get_tokenizer(
        self, _request: tokenizer_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncGenerator[tokenizer_pb2.GetTokenizerChunk]:
        """The tokenizer's files, in a zip archive."""
        try:
            archive = await self.tokenizer.get()
        except NoTokenizer as refusal:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, str(refusal))
        size = len(archive.data)
        for begin in range(0, size, CHUNK):
            data = archive.data[begin : begin + CHUNK]
            last = begin + CHUNK >= size
            yield tokenizer_pb2.GetTokenizerChunk(
                data=data, sha256=archive.digest if last else ""
            )

    def subscribe_kv_events(
        self, request: kv_events_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncGenerator[kv_events_pb2.KvEventBatch]:
        """What the prefix cache has, and each change of it."""
        adapters = [name for name, _ in self.facts.adapters]
        after = request.start_sequence_number
        return subscription(self.cache_feed, adapters, after, context)


class _Writer:
    """Writes the replies of one call: chunks and an end, or each answer as a whole."""

    def __init__(self, answer: Answer, *, streams: bool) -> None:
        self._answer, self._streams = answer, streams
        self._said = [list[TextPiece]() for _ in answer.choices]

    def replies(self, piece: TextPiece) -> Iterator[pb.GenerateResponse]:
        """The replies for a piece; none if the caller waits for the whole."""
        said = self._said[piece.index]
        if self._streams:
            yield pb.GenerateResponse(chunk=self._chunk(piece, begins=not said))
            said[:] = [piece]  # the end repeats the last piece
        else:
            said.append(piece)
        if piece.finish is not None:
            yield pb.GenerateResponse(complete=self._complete(join_pieces(said)))

    def _chunk(self, piece: TextPiece, *, begins: bool) -> pb.GenerateStreamChunk:
        choice = self._answer.choices[piece.index]
        prompt = choice.call.request.prompt
        return pb.GenerateStreamChunk(
            token_ids=piece.tokens,
            prompt_tokens=len(prompt),
            completion_tokens=len(piece.tokens),
            cached_tokens=choice.cached_tokens,
            output_logprobs=_output_logprobs(piece),
            input_logprobs=_input_logprobs(prompt, choice.prompt_logprobs) if begins else None,
            index=piece.index,
        )

    def _complete(self, piece: TextPiece) -> pb.GenerateComplete:
        assert piece.finish is not None
        choice, reason = self._answer.choices[piece.index], piece.stop_reason
        prompt, streams = choice.call.request.prompt, self._streams
        made = pb.GenerateComplete(
            output_ids=piece.tokens,
            finish_reason=piece.finish,
            prompt_tokens=len(prompt),
            completion_tokens=piece.num_tokens,
            cached_tokens=choice.cached_tokens,
            output_logprobs=None if streams else _output_logprobs(piece),
            input_logprobs=None if streams else _input_logprobs(prompt, choice.prompt_logprobs),
            index=piece.index,
        )
        if isinstance(reason, str):
            made.matched_stop_str = reason
        elif reason is not None:
            made.matched_token_id = reason
        if (params := params_of(choice)) is not UNSET:
            made.kv_transfer_params_json = msgspec.json.encode(params).decode()
        return made


def _output_logprobs(piece: TextPiece) -> pb.OutputLogProbs | None:
    places = [one.ranked for one in piece.scored_tokens if one.ranked]
    if not places:
        return None
    return pb.OutputLogProbs(
        token_logprobs=[place[0].logprob for place in places],
        token_ids=[place[0].token for place in places],
        top_logprobs=list(map(_top, places)),
    )


def _input_logprobs(
    prompt: Sequence[int], places: Sequence[Logprobs]
) -> pb.InputLogProbs | None:
    """The first token has none."""
    if not places:
        return None
    first = pb.InputTokenLogProb()
    return pb.InputLogProbs(
        token_logprobs=[first, *(pb.InputTokenLogProb(value=one[0].logprob) for one in places)],
        token_ids=prompt,
        top_logprobs=[pb.TopLogProbs(), *map(_top, places)],
    )


def _top(place: Logprobs) -> pb.TopLogProbs:
    likeliest = place[1:]
    return pb.TopLogProbs(
        values=[one.logprob for one in likeliest], token_ids=[one.token for one in likeliest]
    )
