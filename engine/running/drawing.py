"""Tokens are drawn on a device, with the step that they end or once the host knows how."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention.plan import Drawing, DrawNumbers
from engine.kernels.sampling import SamplingKernels
from engine.kernels.searching import search_for
from engine.kernels.uploading import Part, uploaded
from engine.running.accelerator import Accelerator
from engine.running.runner import Sent
from engine.running.telling import asking, told_of
from engine.sharding.group import Group

SETTINGS = 6  # how many numbers say how a token is drawn: DrawNumbers


@dataclass(frozen=True, slots=True)
class DeviceDrawer:
    """See Drawer. Of the ranks of a `group` the first draws, and tells the others.

    `drawn` [sequences] int64 has a token for each row, until others are drawn.
    """

    accelerator: Accelerator
    kernels: SamplingKernels
    drawn: Tensor
    group: Group | None

    def draw(self, logits: Tensor, drawing: Drawing) -> Sent:
        """See Drawer; settings and changes go by one copy."""
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
        drawing: Drawing,
        settings: Sequence[Tensor],
        latest: Tensor | None,
    ) -> Sent | None:
        """From a step that was just launched; None: another rank draws.

        `settings` are the numbers of `drawing`, where they are staged on the device. `latest`
        [rows] has the token that a row's answer has beside those the host knows, or -1.
        """
        if self.group is not None and self.group.share.rank > 0:
            self.share(len(drawing.draws))
            return None
        changes = list[Tensor]()
        if drawing.changes is not None:
            changes = uploaded(drawing.changes, logits.device)
        return self._draw(logits, drawing, settings, changes, latest=latest)

    def share(self, count: int) -> None:
        """Of what was drawn last the first `count` are rank 0's, on every rank: all call this.

        `draw` does on the rank that draws.
        """
        if self.group is not None:
            self.group.told(self.drawn[:count])

    def wait(self) -> None:
        """See Drawer."""
        self.accelerator.wait()

    def _draw(
        self,
        logits: Tensor,
        drawing: Drawing,
        settings: Sequence[Tensor],
        changes: Sequence[Tensor],
        *,
        latest: Tensor | None = None,
        alive: Tensor | None = None,
    ) -> Sent:
        """Note what is to be told of, change, choose, and send it on its way."""
        kernels, bring, draws = self.kernels, self.accelerator.bring, drawing.draws
        ask = None
        if drawing.asks:
            ask = asking(logits, drawing.asks, changing=bool(changes))
        _change(kernels, logits, changes, latest)
        *numbers, instead = settings
        search, drawn = search_for(one[:4] for one in draws), self.drawn[: len(draws)]
        kernels.choose(logits, *numbers, instead=instead, out=drawn, alive=alive, search=search)
        self.share(len(draws))
        return Sent(
            bring(drawn),
            None if ask is None else bring(told_of(kernels.gather_logprobs, ask, drawn)),
            None if alive is None else bring(alive),
        )


def _settings(draws: Sequence[DrawNumbers]) -> Iterator[Part]:
    """One behind the other, in their order."""
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
    """As LogitChanges say, which were uploaded."""
    if changes:
        masked, bits, headers, factors, tokens, values = changes
        if len(masked):
            kernels.apply_bitmasks(logits, masked, bits.view(len(masked), -1))
        if len(headers):
            lists = headers.view(-1, 4), factors.view(-1, 3), tokens, values
            kernels.adjust(logits, *lists, latest)
