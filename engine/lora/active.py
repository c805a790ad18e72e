"""Which rows of the running step have which adapter."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from engine.attention.plan import Plan
from engine.kernels.lora import SortedRows


@dataclass(slots=True, eq=False)
class ActiveAdapters:
    """The `count` adapters of a model, and the rows of the running step that have one.

    The runner sets `rows` before each forward pass; None: no row has an adapter.
    """

    count: int
    rows: SortedRows | None = field(default=None, init=False)

    def set_from(self, plan: Plan, device: torch.device) -> None:
        """Sort the plan's rows and copy the result to the device."""
        self.rows = None
        if plan.has_adapters:
            both = sort_rows(plan, len(plan.tokens), self.count)
            self.rows = SortedRows(*(torch.from_numpy(one).to(device) for one in both))


def sort_rows(
    plan: Plan, rows: int, adapters: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """SortedRows' `order` and `offsets`; rows behind the plan's own are padding."""
    if not plan.has_adapters:
        return np.arange(rows, dtype=np.int32), np.zeros(adapters + 1, np.int32)
    spans, ids = [*plan.singles, *plan.chunks], np.full(rows, adapters, np.int32)
    own = [adapters if span.adapter is None else span.adapter for span in spans]
    ids[: len(plan.tokens)] = np.repeat(own, [span.length for span in spans])
    order = np.argsort(ids, kind="stable")
    offsets = np.searchsorted(ids[order], np.arange(adapters + 1))
    return order.astype(np.int32), offsets.astype(np.int32)
