"""Pools hidden states to vectors, chunk by chunk: of one token, their mean, or all.

Sums are kept in float32. What is kept of a prompt is dropped with its first chunk's coming
again, so a prompt that was preempted simply starts over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from engine.api import Pooled
from engine.pooling.config import PoolingConfig
from engine.request import PoolingRequest, RequestId


@dataclass(slots=True)
class Pooler:
    """Owns what prompts under way have come to; `head` [labels, hidden] is a classifier's.

    `layers` are those that a pooled vector, though not a token's, goes through at the end.
    """

    config: PoolingConfig
    head: Tensor | None = None
    layers: Sequence[Callable[[Tensor], Tensor]] = ()
    _kept: dict[RequestId, Tensor] = field(default_factory=dict)

    def wants_whole(self, request: PoolingRequest) -> bool:
        """Whether every token's hidden state counts, so that none may come out of a cache."""
        return request.task.startswith("token_") or self.config.kind != "last"

    def forget(self, request_id: RequestId) -> None:
        """Its prompt is not run any further; unknown ids are fine."""
        self._kept.pop(request_id, None)

    def add(self, request: PoolingRequest, start: int, hidden: Tensor) -> Pooled | None:
        """One more chunk [tokens, hidden] of a prompt; what it came to, with the last one."""
        rid, end = request.request_id, start + len(hidden)
        kept = None if start == 0 else self._kept.get(rid)
        kept = self._gather(request, kept, hidden)
        if end < len(request.prompt):
            self._kept[rid] = kept
            return None
        self.forget(rid)
        mean = self.config.kind == "mean" and not request.task.startswith("token_")
        return self.finish(request, kept / end if mean else kept)

    def finish(self, request: PoolingRequest, rows: Tensor) -> Pooled:
        """Pooled hidden states [rows, hidden] as what the task wants of them."""
        rows = rows.float()
        if request.task.endswith("embed"):
            rows = self._embedding(request, rows)
        else:
            rows = self._classes(request, rows)
        return Pooled(request.request_id, rows.cpu().numpy().tobytes(), rows.shape[1])

    def _gather(self, request: PoolingRequest, kept: Tensor | None, hidden: Tensor) -> Tensor:
        """[1, hidden], or [tokens so far, hidden] where each token has a vector of its own."""
        if request.task.startswith("token_"):
            return hidden.clone() if kept is None else torch.cat([kept, hidden])
        match self.config.kind:
            case "last":
                return hidden[-1:].clone()
            case "cls":
                return hidden[:1].clone() if kept is None else kept
            case "mean":
                total = hidden.float().sum(0, keepdim=True)
                return total if kept is None else kept + total

    def _embedding(self, request: PoolingRequest, rows: Tensor) -> Tensor:
        for layer in self.layers if request.task == "embed" else ():
            rows = layer(rows)
        rows = rows[:, : request.dimensions]
        wanted = request.activation and self.config.normalize
        return F.normalize(rows, dim=-1) if wanted else rows.contiguous()

    def _classes(self, request: PoolingRequest, rows: Tensor) -> Tensor:
        if self.head is not None:
            rows = F.linear(rows, self.head)
        if not request.activation or self.config.activation == "identity":
            return rows
        softmax = self.config.activation == "softmax"
        return rows.softmax(-1) if softmax else rows.sigmoid()
