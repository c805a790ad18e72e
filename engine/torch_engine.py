"""The engine behind engine/api.py: scheduler, paged KV and decoder, one batch at a time."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from engine.api import (
    Admitted,
    EngineInfo,
    EngineLoad,
    KvRegion,
    Reservation,
    Sampled,
    StepResult,
)
from engine.attention.kv_memory import KvMemory
from engine.errors import EmptyPrompt, UnknownAdapter, UnknownToken, UnsupportedTask
from engine.models.model import Model
from engine.pooling.checks import check_task
from engine.pooling.pooler import Pooler
from engine.request import PoolingRequest, Request, RequestId
from engine.running.runner import PlainRunner, Runner, copying_states
from engine.sampling.sampler import Sampler
from engine.scheduling.cache_log import CacheLog
from engine.scheduling.kv_manager import KvManager
from engine.scheduling.lending import BlockLoans
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from engine.scheduling.sequence_manager import Limits, SequenceManager
from engine.stepping.ahead import stepper_for
from engine.stepping.head_drafter import HeadDrafter
from engine.stepping.stepper import PlainStepper, Stepper
from engine.tiers.tiers import Tiers


@dataclass(slots=True)
class TorchEngine:
    """Owns the weights, the KV memory, and every sequence from its addition to its removal."""

    info: EngineInfo
    decoder: Model
    memory: KvMemory
    scheduler: Scheduler
    sampler: Sampler
    eos: frozenset[int]
    pooler: Pooler
    stepper: Stepper
    tiers: Tiers | None = None
    lending: BlockLoans = field(init=False)
    _refused: Sequence | None = None

    def __post_init__(self) -> None:
        """Loans are made from the scheduler's blocks."""
        self.lending = BlockLoans(self.scheduler.sequences)

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
        """Assemble an engine; `memory` determines the number of blocks."""
        blocks = KvManager(
            memory.num_blocks,
            info.block_size,
            seed=info.fingerprint,
            prefix_cache=info.prefix_cache,
            blocks_per_state=memory.state_blocks,
        )
        scheduler = Scheduler(SequenceManager(blocks, limits))
        sampler = Sampler(decoder.config.vocab_size, native=memory.kernels)
        eos, pooler = frozenset(info.eos_token_ids), pooler or Pooler(info.pooling)
        runner = runner or copying_states(PlainRunner(decoder, memory), memory)
        stepper = stepper_for(PlainStepper(scheduler, decoder, runner, sampler, pooler))
        return cls(info, decoder, memory, scheduler, sampler, eos, pooler, stepper)

    def log_cache_events(self) -> None:
        """Report what happens to the prefix cache and the tiers that are attached; to be called
        before the first request.
        """
        self.scheduler.sequences.kv.log = log = CacheLog(self.info.block_size)
        if self.tiers is not None:
            self.tiers.book.report_to(log.add_tiers(self.tiers.book))

    def attach_tiers(self, tiers: Tiers) -> None:
        """Keep evicted KV blocks in lower tiers; to be called before the first request."""
        self.tiers = tiers
        self.scheduler.sequences.kv.lower_tiers = tiers.book
        self.stepper.save_before_launch(tiers.carry_out)

    def draft_with_head(self, head: HeadDrafter, most_drafting: int | None) -> None:
        """Run a draft head behind each step; to be called before the first request."""
        self.scheduler.drafter, self.scheduler.most_drafting = head, most_drafting
        self.stepper.run_behind(head)

    def save_evicted_blocks(self) -> None:
        """Copy blocks evicted so far to the lower tiers: they are about to be overwritten."""
        if self.tiers is not None:
            self.tiers.carry_out()

    @property
    def kv_regions(self) -> Seq[KvRegion]:
        """See Engine."""
        return self.memory.regions

    @property
    def load(self) -> EngineLoad:
        """See Engine."""
        return self.scheduler.load

    def ready(self, request: Request) -> bool:
        """See Engine. Grammars are compiled in a thread."""
        grammar, grammars = request.sampling.grammar, self.sampler.grammars
        return grammar is None or grammars is None or grammars.ready(grammar)

    def generate(self, request: Request) -> None:
        """See Engine."""
        self.scheduler.add(self._generating(request))

    def prefill(self, request: Request) -> None:
        """See Engine."""
        self.scheduler.add(self._generating(request, parks=True))

    def reserve(self, request: Request) -> Reservation | None:
        """See Engine. A retry of the request that was refused last does not rebuild it."""
        seq = self._refused
        if seq is None or seq.request is not request:
            seq = self._generating(request)
        reservation = self.scheduler.reserve(seq)
        self._hand_out(() if reservation is None else self._to_be_filled(reservation))
        self._refused = seq if reservation is None else None
        return reservation

    def resume(self, request_id: RequestId, tokens: Seq[int]) -> Seq[Sampled]:
        """See Engine. Blocks behind the transferred KV may contain anything."""
        seq = self.scheduler.find(request_id)
        self._check_tokens(request_id, tokens)
        index, rest = divmod(len(seq.tokens), self.info.block_size)
        if rest:
            self.memory.clear_behind(seq.blocks[index], rest)
        return list(self.scheduler.resume(request_id, tokens))

    def embed(self, request: PoolingRequest) -> None:
        """See Engine. To the scheduler it is a prompt without an answer."""
        check_task(request, self.info.pooling, self.decoder.config.hidden_size)
        prompt = Request(
            request.request_id,
            request.prompt,
            priority=request.priority,
            cache_salt=request.cache_salt,
        )
        seq = self._sequence(prompt)
        seq.pooling, seq.recompute_all = request, self.pooler.wants_whole(request)
        self.scheduler.add(seq)

    def keys(self, request: Request) -> Seq[bytes]:
        """See Engine. These are the prefix cache's keys."""
        if self.info.state_blocks:
            return ()
        return self.scheduler.sequences.kv.keys(Sequence(request))

    def known(self, keys: Seq[bytes]) -> int:
        """See Engine."""
        return self.scheduler.sequences.kv.pool.known(keys)

    def lend(self, name: str, keys: Seq[bytes]) -> Seq[int]:
        """See Engine. Other nodes may read the blocks as soon as this returns."""
        blocks = self.lending.lend(name, keys)
        self._hand_out(())
        return blocks

    def borrow(self, name: str, keys: Seq[bytes], have: int) -> Seq[int] | None:
        """See Engine. Other nodes may write to the blocks as soon as this returns."""
        blocks = self.lending.borrow(name, keys, have)
        self._hand_out(blocks or ())
        return blocks

    def keep(self, name: str) -> None:
        """See BlockLoans."""
        self.lending.keep(name)

    def give_back(self, name: str) -> None:
        """See BlockLoans."""
        self.lending.give_back(name)

    def blocks(self, request_id: RequestId) -> Seq[int]:
        """See Engine."""
        return self.scheduler.find(request_id).all_blocks

    def release(self, request_id: RequestId) -> None:
        """See Engine."""
        self.scheduler.remove(request_id)
        self.pooler.forget(request_id)

    def schedule(self) -> Seq[Admitted]:
        """Choose the next batch, and fill what it finds in lower tiers."""
        if self.tiers is None:
            return self.scheduler.schedule()
        self.tiers.collect_finished_jobs()
        admitted = self.scheduler.schedule()
        self.tiers.carry_out()
        return admitted

    def step(self) -> StepResult:
        """Run the batch; an engine without work checks its bookkeeping instead."""
        if self.scheduler.batch:
            result = self.stepper.step()
        else:
            self.stepper.finish()
            self.scheduler.sequences.check_idle()
            result = StepResult((), (), 0)
        events = self.scheduler.sequences.kv.take_log()
        return replace(result, cache_events=events) if events else result

    def _to_be_filled(self, reservation: Reservation) -> Seq[int]:
        return reservation.blocks[reservation.filled // self.info.block_size :]

    def _hand_out(self, blocks: Seq[int]) -> None:
        """Other nodes may write to these `blocks`, and read blocks in the prefix cache.

        All pending block copies are carried out first.
        """
        self.stepper.synchronize(blocks)
        if self.tiers is not None:
            self.tiers.carry_out(wait=True)

    def _generating(self, request: Request, *, parks: bool = False) -> Sequence:
        if not self.info.pooling.generates:
            raise UnsupportedTask("this model does not generate text")
        return self._sequence(request, parks=parks)

    def _sequence(self, request: Request, *, parks: bool = False) -> Sequence:
        tokens = request.tokens
        if not tokens:
            raise EmptyPrompt(f"{request.request_id}: no tokens")
        self._check_tokens(request.request_id, tokens)
        seq = Sequence(request, self.eos, parks, adapter=self._adapter_of(request))
        self.sampler.check(seq)
        return seq

    def _adapter_of(self, request: Request) -> int | None:
        if request.adapter is None:
            return None
        if request.adapter not in self.info.adapters:
            told = f"{request.request_id}: there is no adapter {request.adapter}"
            raise UnknownAdapter(told, "model")
        return self.info.adapters.index(request.adapter)

    def _check_tokens(self, request_id: RequestId, tokens: Seq[int]) -> None:
        vocabulary = self.decoder.config.vocab_size
        ends = {min(tokens), max(tokens)} if tokens else set()
        if odd := sorted(one for one in ends if not 0 <= one < vocabulary):
            told = f"{request_id}: {odd} not in 0..{vocabulary - 1}"
            raise UnknownToken(told, "token_ids")
