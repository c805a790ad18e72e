"""The engine behind engine/api.py: scheduler, paged KV and decoder, one batch at a time."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

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
from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.errors import EmptyPrompt, UnknownToken, WrongTask
from engine.models.model import Model
from engine.pooling.checks import check_task
from engine.pooling.pooler import Pooler
from engine.request import PoolingRequest, Request, RequestId
from engine.running.runner import PlainRunner, Runner
from engine.sampling.sampler import Draw, Sampler
from engine.sampling.sampler import Drawn as DrawnRows
from engine.sampling.scoring import score
from engine.scheduling.kv_manager import KvManager
from engine.scheduling.lending import Lending
from engine.scheduling.room import Limits, Room
from engine.scheduling.scheduler import Chunk, Drawn, Scheduler
from engine.scheduling.sequence import Sequence
from engine.tiers.tiers import Tiers


@dataclass(slots=True)
class TorchEngine:
    """Owns the weights, the KV memory and every sequence handed in until it is gone."""

    info: EngineInfo
    decoder: Model
    memory: KvMemory
    scheduler: Scheduler
    sampler: Sampler
    eos: frozenset[int]
    pooler: Pooler
    runner: Runner
    tiers: Tiers | None = None
    lending: Lending = field(init=False)
    _refused: Sequence | None = None

    def __post_init__(self) -> None:
        """What is lent and borrowed is of the same blocks."""
        self.lending = Lending(self.scheduler.room)

    @classmethod
    def build(
        cls,
        info: EngineInfo,
        decoder: Model,
        memory: KvMemory,
        limits: Limits,
        *,
        pooler: Pooler | None = None,
        runner: Runner | None = None,
    ) -> "TorchEngine":
        """Put the parts together; `memory` says how many blocks there are."""
        blocks = KvManager(
            memory.num_blocks,
            info.block_size,
            seed=info.fingerprint,
            prefix_cache=info.prefix_cache,
        )
        scheduler = Scheduler(Room(blocks, limits))
        sampler = Sampler(decoder.config.vocab_size)
        eos, pooler = frozenset(info.eos_token_ids), pooler or Pooler(info.pooling)
        runner = runner or PlainRunner(decoder, memory)
        return cls(info, decoder, memory, scheduler, sampler, eos, pooler, runner)

    def put_below(self, tiers: Tiers) -> None:
        """What the KV memory forgets is kept there; before anything is handed in."""
        self.tiers = tiers
        self.scheduler.room.kv.below = tiers.book

    @property
    def kv_regions(self) -> Seq[KvRegion]:
        """One flat region."""
        return self.memory.regions

    @property
    def load(self) -> EngineLoad:
        """As the scheduler counts."""
        return self.scheduler.load

    def ready(self, request: Request) -> bool:
        """Whatever takes long is done in a thread."""
        grammar, grammars = request.sampling.grammar, self.sampler.grammars
        return grammar is None or grammars is None or grammars.ready(grammar)

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
        self._settle_below()
        self._refused = seq if reservation is None else None
        return reservation

    def resume(self, request_id: RequestId, tokens: Seq[int]) -> Seq[Sampled]:
        """Go on from KV that came from elsewhere; behind it may be anything."""
        seq = self.scheduler.find(request_id)
        index, rest = divmod(len(seq.tokens), self.info.block_size)
        if rest:
            self.memory.clear_behind(seq.blocks[index], rest)
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

    def keys(self, request: Request) -> Seq[bytes]:
        """Named as the prefix cache does."""
        return self.scheduler.room.kv.keys(Sequence(request))

    def known(self, keys: Seq[bytes]) -> int:
        """A look into the books."""
        return self.scheduler.room.kv.known(keys)

    def lend(self, name: str, keys: Seq[bytes]) -> Seq[int]:
        """Others read them, as soon as they are told."""
        blocks = self.lending.lend(name, keys)
        self._settle_below()
        return blocks

    def borrow(self, name: str, keys: Seq[bytes], have: int) -> Seq[int] | None:
        """Others write to them, as soon as they are told."""
        blocks = self.lending.borrow(name, keys, have)
        self._settle_below()
        return blocks

    def keep(self, name: str) -> None:
        """See Lending."""
        self.lending.keep(name)

    def give_back(self, name: str) -> None:
        """See Lending."""
        self.lending.give_back(name)

    def blocks(self, request_id: RequestId) -> Seq[int]:
        """In the order of the prompt."""
        return tuple(self.scheduler.find(request_id).blocks)

    def release(self, request_id: RequestId) -> None:
        """Nothing runs between steps, so the blocks are free at once."""
        self.scheduler.remove(request_id)
        self.pooler.forget(request_id)

    def schedule(self) -> Seq[Admitted]:
        """Choose the next batch, and fill what it finds in lower tiers."""
        if self.tiers is None:
            return self.scheduler.schedule()
        self.tiers.take_news()
        admitted = self.scheduler.schedule()
        self.tiers.carry_out()
        return admitted

    def step(self) -> StepResult:
        """Run it. An engine without work checks its books instead."""
        batch = self.scheduler.batch
        if not batch:
            self.scheduler.room.check_idle()
            return StepResult((), (), 0)
        return self._run(batch)

    def _settle_below(self) -> None:
        """Move what was to be moved, before others read blocks, or write to them."""
        if self.tiers is not None:
            self.tiers.carry_out(wait=True)

    def _answered(self, request: Request, *, parks: bool = False) -> Sequence:
        if not self.info.pooling.generates:
            raise WrongTask("this model does not generate text")
        return self._sequence(request, parks=parks)

    def _sequence(self, request: Request, *, parks: bool = False) -> Sequence:
        tokens, vocabulary = request.tokens, self.decoder.config.vocab_size
        if not tokens:
            raise EmptyPrompt(f"{request.request_id}: no tokens")
        if odd := sorted(
            one for one in {min(tokens), max(tokens)} if not 0 <= one < vocabulary
        ):
            told = f"{request.request_id}: {odd} not in 0..{vocabulary - 1}"
            raise UnknownToken(told, "token_ids")
        seq = Sequence(request, self.eos, parks)
        self.sampler.check(seq)
        return seq

    @torch.inference_mode()
    def _run(self, batch: Seq[Chunk]) -> StepResult:
        """One forward pass, and what is made of it."""
        ordered = sorted(batch, key=_place)
        hidden, logits = self.runner.run(_plan(ordered))
        scored = list(score(ordered, hidden, self.decoder.logits))
        pooled = self._pool(ordered, hidden)
        if logits is None:
            hidden[-1, 0].item()  # wait for the device: others read what we call filled
            drawn = dict[RequestId, Drawn]()
        else:
            drawn = self._sample(ordered, logits)
        return replace(self.scheduler.commit(drawn), pooled=pooled, scored=scored)

    def _pool(self, batch: Seq[Chunk], hidden: torch.Tensor) -> list[Pooled]:
        """What the prompts that are to be pooled came to, where this batch was their last."""
        pooled, first = list[Pooled](), 0
        for chunk in batch:
            if chunk.seq.pooling is not None:
                rows = hidden[first : first + chunk.size]
                one = self.pooler.add(chunk.seq.pooling, chunk.start, rows)
                pooled += [] if one is None else [one]
            first += chunk.size
        return pooled

    def _sample(self, batch: Seq[Chunk], logits: torch.Tensor) -> dict[RequestId, Drawn]:
        """What follows each sequence whose end was reached, and each of its drafts."""
        sampling = [chunk for chunk in batch if chunk.samples]
        draws = [
            Draw(chunk.seq, tuple(chunk.drafts[:ahead]))
            for chunk in sampling
            for ahead in range(len(chunk.drafts) + 1)
        ]
        return dict(_by_request(sampling, self.sampler.sample(logits, draws)))


def _place(chunk: Chunk) -> tuple[bool, int]:
    """Singles of like length behind one another."""
    return chunk.size > 1, chunk.start


def _plan(ordered: Seq[Chunk]) -> Plan:
    """Single tokens first; a token is drawn at a sequence's end, and behind its drafts."""
    tokens, picks = list[int](), list[int]()
    spans = [Span(chunk.start, chunk.size, chunk.seq.blocks) for chunk in ordered]
    for chunk in ordered:
        tokens += chunk.tokens
        if chunk.samples:
            picks += range(len(tokens) - len(chunk.drafts) - 1, len(tokens))
    singles = sum(span.length == 1 for span in spans)
    return Plan(tokens, spans[:singles], spans[singles:], picks)


def _by_request(sampling: Seq[Chunk], drawn: DrawnRows) -> Iterator[tuple[RequestId, Drawn]]:
    """Each chunk's part of the rows: one, and one for each of its drafts."""
    row = 0
    for chunk in sampling:
        rows = range(row, row := row + len(chunk.drafts) + 1)
        logprobs = [drawn.logprobs[one] for one in rows] if row - 1 in drawn.logprobs else ()
        yield chunk.seq.request_id, Drawn(drawn.tokens[rows.start : row], logprobs)
