"""The engine behind engine/api.py: scheduler, paged KV and decoder, one batch at a time."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import torch

from engine.api import (
    Admitted,
    EngineInfo,
    EngineLoad,
    KvRegion,
    Pooled,
    Reservation,
    Sampled,
    StepResult,
)
from engine.attention.kv_memory import KvMemory
from engine.attention.paged import AttentionBatch, Span
from engine.errors import EmptyPrompt, UnknownToken, WrongTask
from engine.models.decoder import Decoder
from engine.pooling.checks import check_task
from engine.pooling.pooler import Pooler
from engine.request import Logprobs, PoolingRequest, Request, RequestId
from engine.sampling.checks import check_sampling
from engine.sampling.sampler import Draw, Sampler
from engine.sampling.scoring import score
from engine.scheduling.kv_manager import KvManager
from engine.scheduling.scheduler import Chunk, Limits, Scheduler
from engine.scheduling.sequence import Sequence


@dataclass(slots=True)
class TorchEngine:
    """Owns the weights, the KV memory and every sequence handed in until it is gone."""

    info: EngineInfo
    decoder: Decoder
    memory: KvMemory
    scheduler: Scheduler
    sampler: Sampler
    eos: frozenset[int]
    pooler: Pooler
    _refused: Sequence | None = None

    @classmethod
    def build(
        cls,
        info: EngineInfo,
        decoder: Decoder,
        memory: KvMemory,
        limits: Limits,
        *,
        head: torch.Tensor | None = None,
        prefix_cache: bool = True,
    ) -> "TorchEngine":
        """Put the parts together; `memory` says how many blocks there are."""
        blocks = KvManager(
            memory.num_blocks, info.block_size, seed=info.fingerprint, prefix_cache=prefix_cache
        )
        scheduler = Scheduler(blocks, limits)
        sampler = Sampler(decoder.config.vocab_size)
        eos, pooler = frozenset(info.eos_token_ids), Pooler(info.pooling, head)
        return cls(info, decoder, memory, scheduler, sampler, eos, pooler)

    @property
    def kv_regions(self) -> Seq[KvRegion]:
        """One flat region."""
        return self.memory.regions

    @property
    def load(self) -> EngineLoad:
        """Counts only; nothing is computed for it."""
        one = self.scheduler
        return EngineLoad(
            len(one.waiting),
            len(one.running),
            one.kv.free_blocks,
            one.kv.num_blocks,
            one.preemptions,
        )

    def generate(self, request: Request) -> None:
        """Queue it."""
        self.scheduler.add(self._answered(request))

    def prefill(self, request: Request) -> None:
        """Queue it, to park after its first token."""
        self.scheduler.add(self._answered(request, parks=True))

    def reserve(self, request: Request) -> Reservation | None:
        """Take a seat and blocks. A request that was refused last is not looked at anew."""
        seq = self._refused
        if seq is None or seq.request is not request:
            seq = self._answered(request)
        reservation = self.scheduler.reserve(seq)
        self._refused = seq if reservation is None else None
        return reservation

    def resume(self, request_id: RequestId, tokens: Seq[int]) -> Seq[Sampled]:
        """Go on from KV that came from elsewhere."""
        return list(self.scheduler.resume(request_id, tokens))

    def embed(self, request: PoolingRequest) -> None:
        """Queue it. To the scheduler it is a prompt that nothing follows."""
        check_task(request, self.info.pooling, self.decoder.config.hidden_size)
        prompt = Request(
            request.request_id,
            request.prompt,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )
        seq = self._sequence(prompt)
        seq.pooling, seq.whole = request, self.pooler.wants_whole(request)
        self.scheduler.add(seq)

    def blocks(self, request_id: RequestId) -> Seq[int]:
        """In the order of the prompt."""
        return tuple(self.scheduler.find(request_id).blocks)

    def release(self, request_id: RequestId) -> None:
        """Nothing runs between steps, so the blocks are free at once."""
        self.scheduler.remove(request_id)
        self.pooler.forget(request_id)

    def schedule(self) -> Seq[Admitted]:
        """Choose the next batch."""
        return self.scheduler.schedule()

    def step(self) -> StepResult:
        """Run it. An engine without work checks its books instead."""
        batch = self.scheduler.batch
        if not batch:
            self.scheduler.kv.check()
            return StepResult((), (), 0)
        return self._run(batch)

    def _answered(self, request: Request, *, parks: bool = False) -> Sequence:
        if not self.info.pooling.generates:
            raise WrongTask("this model does not generate text")
        return self._sequence(request, parks=parks)

    def _sequence(self, request: Request, *, parks: bool = False) -> Sequence:
        tokens, vocabulary = request.tokens, self.decoder.config.vocab_size
        if not tokens:
            raise EmptyPrompt(f"{request.request_id}: no tokens")
        if odd := [one for one in (min(tokens), max(tokens)) if not 0 <= one < vocabulary]:
            raise UnknownToken(f"{request.request_id}: {odd} not in 0..{vocabulary - 1}")
        seq = Sequence(request, self.eos, parks)
        check_sampling(request, vocabulary, seq.end_tokens)
        return seq

    @torch.inference_mode()
    def _run(self, batch: Seq[Chunk]) -> StepResult:
        """One forward pass; single tokens first, as AttentionBatch wants them."""
        ordered = sorted(batch, key=_place)
        spans = [Span(chunk.start, chunk.length, chunk.seq.blocks) for chunk in ordered]
        singles = sum(span.length == 1 for span in spans)
        attention = AttentionBatch(self.memory, spans[:singles], spans[singles:])
        self.memory.clear(attention.entered)
        device = self.memory.block_rows.device
        tokens = torch.tensor([token for chunk in ordered for token in _tokens(chunk)])
        hidden = self.decoder.forward(tokens.to(device), attention)
        scored = list(score(ordered, hidden, self.decoder.logits))
        drawn, logprobs = self._sample(ordered, hidden)
        pooled = self._pool(ordered, hidden)
        result = replace(self.scheduler.commit(drawn), pooled=pooled, scored=scored)
        return _with_logprobs(result, logprobs) if logprobs else result

    def _pool(self, batch: Seq[Chunk], hidden: torch.Tensor) -> list[Pooled]:
        """What the prompts that are to be pooled came to, where this batch was their last."""
        pooled, first = list[Pooled](), 0
        for chunk in batch:
            rows = hidden[first : first + chunk.length]
            first += chunk.length
            if chunk.seq.pooling is not None:
                one = self.pooler.add(chunk.seq.pooling, chunk.start, rows)
                pooled += [] if one is None else [one]
        return pooled

    def _sample(
        self, batch: Seq[Chunk], hidden: torch.Tensor
    ) -> tuple[dict[RequestId, int], dict[RequestId, Logprobs]]:
        """A token for each chunk that reaches its sequence's end."""
        rows, draws, names, last = list[int](), list[Draw](), list[RequestId](), -1
        for chunk in batch:
            last += chunk.length
            if chunk.samples:
                rows.append(last)
                draws.append(Draw(chunk.seq))
                names.append(chunk.seq.request_id)
        if not rows:
            hidden[-1, 0].item()  # wait for the device: others read what we call filled
            return {}, {}
        picked = hidden if len(rows) == len(hidden) else hidden[rows]
        drawn = self.sampler.sample(self.decoder.logits(picked), draws)
        tokens = dict(zip(names, drawn.tokens, strict=True))
        return tokens, {names[row]: told for row, told in drawn.logprobs.items()}


def _place(chunk: Chunk) -> tuple[bool, int]:
    """Singles of like length behind one another."""
    return chunk.length > 1, chunk.start


def _tokens(chunk: Chunk) -> list[int]:
    return chunk.seq.tokens[chunk.start : chunk.start + chunk.length]


def _with_logprobs(result: StepResult, logprobs: dict[RequestId, Logprobs]) -> StepResult:
    """The scheduler does not know of them."""
    sampled = [
        replace(one, logprobs=(logprobs[one.request_id],))
        if one.request_id in logprobs
        else one
        for one in result.sampled
    ]
    return replace(result, sampled=sampled)
