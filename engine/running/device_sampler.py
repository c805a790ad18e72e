"""Samples tokens with kernels on the device, with the forward pass or launched later."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention.plan import RowSampling, SamplingPlan
from engine.kernels.sampling import SamplingKernels
from engine.kernels.searching import search_for
from engine.kernels.uploading import Part, uploaded
from engine.running.accelerator import Accelerator
from engine.running.logprob_rows import gather_logprob_rows, launch_logprobs
from engine.running.runner import HostCopy, PendingTokens
from engine.sharding.group import RankGroup

SETTINGS = 6  # how many numbers say how a token is drawn: RowSampling


@dataclass(frozen=True, slots=True)
class KernelSampler:
    """See DeviceSampler. In a `group` rank 0 samples, and broadcasts to the others.

    `drawn` [sequences] int64 has each row's token; the next draw overwrites it.
    """

    accelerator: Accelerator
    kernels: SamplingKernels
    drawn: Tensor
    group: RankGroup | None

    def draw(self, logits: Tensor, drawing: SamplingPlan) -> PendingTokens:
        """See DeviceSampler; settings and changes are uploaded by one copy."""
        parts = [*_settings(drawing.draws), *(drawing.changes or ())]
        there = uploaded(parts, logits.device)
        alive = None
        if drawing.changes is not None:
            alive = torch.empty(len(drawing.draws), dtype=torch.int32, device=logits.device)
        temperatures, top_k, top_p, min_p, keys, instead = there[:SETTINGS]
        settings = temperatures, top_k, top_p, min_p, keys.view(-1, 2), instead
        return self._draw(logits, drawing, settings, there[SETTINGS:], alive=alive)

    def draw_at_once(
        self,
        logits: Tensor,
        drawing: SamplingPlan,
        settings: Sequence[Tensor],
        latest: Tensor | None,
    ) -> PendingTokens | None:
        """Sample from the step that was just launched; None if another rank samples.

        `settings` are the numbers of `drawing` that are staged on the device. `latest` [rows]
        has the token of each row's answer that the host does not know yet, or -1.
        """
        if self.group is not None and self.group.shard.rank > 0:
            self.share(len(drawing.draws))
            return None
        changes = list[Tensor]()
        if drawing.changes is not None:
            changes = uploaded(drawing.changes, logits.device)
        return self._draw(logits, drawing, settings, changes, latest=latest)

    def share(self, count: int) -> None:
        """Broadcast the first `count` sampled tokens from rank 0; every rank must call this.

        On the rank that samples, `draw` calls it.
        """
        if self.group is not None:
            self.group.broadcast(self.drawn[:count])

    def mark(self) -> HostCopy:
        """See DeviceSampler."""
        return self.accelerator.copy_to_host(self.drawn[:1])

    def wait(self) -> None:
        """See DeviceSampler."""
        self.accelerator.wait()

    def _draw(
        self,
        logits: Tensor,
        drawing: SamplingPlan,
        settings: Sequence[Tensor],
        changes: Sequence[Tensor],
        *,
        latest: Tensor | None = None,
        alive: Tensor | None = None,
    ) -> PendingTokens:
        """Gather logits for log-probabilities, adjust logits, sample, and start the copies."""
        kernels, copy_to_host, draws = (
            self.kernels,
            self.accelerator.copy_to_host,
            drawing.draws,
        )
        ask = None
        if drawing.logprob_requests:
            ask = gather_logprob_rows(logits, drawing.logprob_requests, changing=bool(changes))
        _change(kernels, logits, changes, latest)
        *numbers, instead = settings
        search, drawn = search_for(one[:4] for one in draws), self.drawn[: len(draws)]
        kernels.choose(logits, *numbers, instead=instead, out=drawn, alive=alive, search=search)
        self.share(len(draws))
        return PendingTokens(
            copy_to_host(drawn),
            None
            if ask is None
            else copy_to_host(launch_logprobs(kernels.gather_logprobs, ask, drawn)),
            None if alive is None else copy_to_host(alive),
        )


def _settings(draws: Sequence[RowSampling]) -> Iterator[Part]:
    """Each setting of all rows as one array, in the order of RowSampling."""
    temperatures, top_k, top_p, min_p, keys, instead = zip(*draws, strict=True)
    yield np.array(temperatures, np.float32)
    yield np.array(top_k, np.int32)
    yield np.array(top_p, np.float32)
    yield np.array(min_p, np.float32)
    yield np.array(keys, np.uint32).view(np.int32)
    yield np.array(instead, np.int32)


def _change(
    kernels: SamplingKernels, logits: Tensor, changes: Sequence[Tensor], latest: Tensor | None
) -> None:
    """Apply uploaded LogitChanges to the logits, in place."""
    if changes:
        masked, bits, headers, factors, tokens, values = changes
        if len(masked):
            kernels.apply_bitmasks(logits, masked, bits.view(len(masked), -1))
        if len(headers):
            lists = headers.view(-1, 4), factors.view(-1, 3), tokens, values
            kernels.adjust(logits, *lists, latest)
