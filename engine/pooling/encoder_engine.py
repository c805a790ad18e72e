"""An engine for encoder models: whole prompts in padded batches; no KV and no sampling."""

from bisect import insort
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

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
from engine.errors import EmptyPrompt, RequestTooLong, UnknownToken, UnsupportedTask
from engine.pooling.checks import check_task
from engine.pooling.pooler import Pooler
from engine.request import PoolingRequest, Request, RequestId
from engine.scheduling.sequence_manager import Limits

BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class EncoderModel:
    """A model of transformers; `segments` is its number of token types."""

    module: nn.Module
    vocab_size: int
    hidden_size: int
    segments: int
    padding: int
    device: torch.device

    @torch.inference_mode()
    def run(self, requests: Seq[PoolingRequest]) -> list[Tensor]:
        """Run prompts: each one's hidden states [tokens, hidden], or its logits [1, labels]."""
        longest = max(len(one.prompt) for one in requests)
        tokens, mask, types = torch.zeros(3, len(requests), longest, dtype=torch.long)
        tokens += self.padding
        for row, one in enumerate(requests):
            tokens[row, : len(one.prompt)] = torch.tensor(one.prompt)
            mask[row, : len(one.prompt)] = 1
            types[row, : len(one.token_types)] = torch.tensor(one.token_types)
        given = {"input_ids": tokens, "attention_mask": mask}
        if self.segments > 1:
            given["token_type_ids"] = types
        said = self.module(**{name: one.to(self.device) for name, one in given.items()})
        if (logits := getattr(said, "logits", None)) is not None:
            return list(logits[:, None].unbind(0))
        hidden: Tensor = said.last_hidden_state
        return [row[: len(one.prompt)] for row, one in zip(hidden, requests, strict=True)]


@dataclass(slots=True)
class EncoderEngine:
    """See Engine. Owns the model and all waiting requests, which run in order of rank."""

    info: EngineInfo
    model: EncoderModel
    limits: Limits
    pooler: Pooler
    waiting: list[PoolingRequest] = field(default_factory=list)
    batch: list[PoolingRequest] = field(default_factory=list)
    prompt_tokens: int = 0
    _memory: Tensor = field(default_factory=lambda: torch.zeros(BLOCK_BYTES, dtype=torch.uint8))

    @property
    def kv_regions(self) -> Seq[KvRegion]:
        """One unused block, because connectors need some memory."""
        return [KvRegion(self._memory.data_ptr(), BLOCK_BYTES, 1, "cpu")]

    @property
    def load(self) -> EngineLoad:
        """See Engine."""
        waiting, running = len(self.waiting), len(self.batch)
        return EngineLoad(waiting, running, 1, 1, prompt_tokens=self.prompt_tokens)

    def ready(self, request: Request) -> bool:
        """True: `generate` refuses it in any case."""
        return not self.info.pooling.generates

    def generate(self, request: Request) -> None:
        """Not supported: raises UnsupportedTask."""
        raise UnsupportedTask("this model does not generate text")

    prefill = generate

    def reserve(self, request: Request) -> Reservation | None:
        """Not supported: raises UnsupportedTask."""
        raise UnsupportedTask("this model does not generate text")

    def resume(self, request_id: RequestId, tokens: Seq[int]) -> Seq[Sampled]:
        """Not supported: nothing is ever reserved."""
        raise KeyError(request_id)

    def keys(self, request: Request) -> Seq[bytes]:
        """Empty: there is no KV."""
        return ()

    def known(self, keys: Seq[bytes]) -> int:
        """0: there is no prefix cache."""
        return 0

    def lend(self, name: str, keys: Seq[bytes]) -> Seq[int]:
        """Empty: there is nothing to lend."""
        return ()

    def borrow(self, name: str, keys: Seq[bytes], have: int) -> Seq[int] | None:
        """None: there is no room."""
        return None

    def give_back(self, name: str) -> None:
        """An error: nothing is ever lent or borrowed."""
        raise KeyError(name)

    keep = give_back

    def blocks(self, request_id: RequestId) -> Seq[int]:
        """An error: no request has blocks."""
        raise KeyError(request_id)

    def embed(self, request: PoolingRequest) -> None:
        """See Engine. Queues it behind others of its priority."""
        check_task(request, self.info.pooling, self.model.hidden_size)
        self._check(request)
        if any(one.request_id == request.request_id for one in (*self.waiting, *self.batch)):
            raise ValueError(f"request {request.request_id} is here already")
        insort(self.waiting, request, key=lambda one: one.priority)

    def release(self, request_id: RequestId) -> None:
        """See Engine."""
        for line in (self.waiting, self.batch):
            for one in line:
                if one.request_id == request_id:
                    line.remove(one)
                    return
        raise KeyError(request_id)

    def schedule(self) -> Seq[Admitted]:
        """Choose as many of the first requests as fit, padded to the longest; at least one."""
        if self.batch:
            return ()
        longest = 0
        for count, one in enumerate(self.waiting, 1):
            longest = max(longest, len(one.prompt))
            full = count > self.limits.max_sequences or count * longest > self.limits.max_tokens
            if count > 1 and full:
                break
            self.batch.append(one)
        del self.waiting[: len(self.batch)]
        return [Admitted(one.request_id, 0) for one in self.batch]

    def step(self) -> StepResult:
        """Run the batch, whole prompts at a time."""
        batch, self.batch = self.batch, []
        if not batch:
            return StepResult((), (), 0)
        ran = zip(batch, self.model.run(batch), strict=True)
        pooled = [self._pool(one, rows) for one, rows in ran]
        count = sum(len(one.prompt) for one in batch)
        self.prompt_tokens += count
        return StepResult((), (), count, pooled=pooled)

    def _pool(self, request: PoolingRequest, rows: Tensor) -> Pooled:
        if self.info.pooling.labels:
            return self.pooler.finish(request, rows)
        pooled = self.pooler.add(request, 0, rows)
        assert pooled is not None, "a whole prompt is its last chunk"
        return pooled

    def _check(self, request: PoolingRequest) -> None:
        rid, tokens, types = request.request_id, request.prompt, request.token_types
        if not tokens:
            raise EmptyPrompt(f"{rid}: no tokens")
        if len(tokens) > self.info.max_model_len:
            most = self.info.max_model_len
            raise RequestTooLong(f"{rid}: {len(tokens)} tokens, the model has {most}", "input")
        known = self.model.vocab_size
        if odd := [one for one in (min(tokens), max(tokens)) if not 0 <= one < known]:
            raise UnknownToken(f"{rid}: {odd} not in 0..{known - 1}")
        segments = max(1, self.model.segments)
        if types and (len(types) != len(tokens) or max(types) >= segments):
            raise UnsupportedTask(
                f"{rid}: token_types are not of {segments} kinds, one a token"
            )
