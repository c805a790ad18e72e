"""Pools hidden states into vectors, chunk by chunk: one token's, the mean, or all tokens'.

Sums are in float32. When a prompt's first chunk comes again, its state is dropped, so a
preempted prompt simply starts over.
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
    """Owns the state of prompts under way; `head` [labels, hidden] is a classifier's.

    `layers` are applied to pooled vectors, but not to those of single tokens.
    """

    config: PoolingConfig
    head: Tensor | None = None
    layers: Sequence[Callable[[Tensor], Tensor]] = ()
    _kept: dict[RequestId, Tensor] = field(default_factory=dict)

    def wants_whole(self, request: PoolingRequest) -> bool:
        """Whether every token's hidden state is needed, so none may be skipped as cached."""
        return request.task.startswith("token_") or self.config.kind != "last"

    def forget(self, request_id: RequestId) -> None:
        """Drop a prompt's state; unknown ids are no error."""
        self._kept.pop(request_id, None)

    def add(self, request: PoolingRequest, start: int, hidden: Tensor) -> Pooled | None:
        """Add a chunk [tokens, hidden] of a prompt; returns the result with the last chunk."""
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
        """The task's result from pooled hidden states [rows, hidden]."""
        rows = rows.float()
        if request.task.endswith("embed"):
            rows = self._embedding(request, rows)
        else:
            rows = self._classes(request, rows)
        return Pooled(request.request_id, rows.cpu().numpy().tobytes(), rows.shape[1])

    def _gather(self, request: PoolingRequest, kept: Tensor | None, hidden: Tensor) -> Tensor:
        """[1, hidden], or [tokens so far, hidden] if each token gets its own vector."""
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
