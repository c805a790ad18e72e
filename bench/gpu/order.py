"""Which rows are measured, and in which order: the most important first."""

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType

from bench.gpu import rows as our_rows
from bench.gpu.measuring import Measured, told
from bench.gpu.row import Row
from bench.gpu.shapes import Shape

ORDER = (
    "steps",
    "handovers",
    "loading",
    "attention",
    "latents",
    "few_rows",
    "few_row_experts",
    "overlapped_steps",
    "brought_steps",
    "apart_steps",
    "adapted_steps",
    "their_steps",
    "step_products",
    "products",
    "stored",
    "experts",
    "recurrent",
    "adapters",
    "rounded",
    "pointwise",
    "sampling",
    "pieces",
)
ALONE = {
    "steps",
    "overlapped_steps",
    "brought_steps",
    "apart_steps",
    "adapted_steps",
    "their_steps",
}
"""Modules whose model fills the device, so that no other may be loaded beside it."""


@dataclass(frozen=True, slots=True)
class RowEntry:
    """A row of a shape and a module of rows, or why that module has none."""

    shape: Shape
    module: str
    row: Row | Measured

    def failed(self, why: str) -> Measured:
        """A result that says why the row was not measured."""
        if isinstance(self.row, Measured):
            return self.row
        return Measured(self.shape.name, self.row.name, self.row.setting, failed=why)


def find_entries(
    shapes: Sequence[Shape], only: Sequence[str], package: ModuleType = our_rows
) -> list[RowEntry]:
    """Rows whose line has one of `only`, or all if that is empty, by module, then by shape.

    The result is the same in all processes.
    """
    return [
        RowEntry(shape, module, row)
        for module in _modules(package)
        for shape in shapes
        for row in _rows(shape, f"{package.__name__}.{module}")
        if isinstance(row, Measured) or wanted(str(row), only)
    ]


def lane_end(entries: Sequence[RowEntry], first: int, *, one_process: bool) -> int:
    """The entry after the last one that a process that begins with `first` may measure."""
    if one_process:
        return len(entries)
    ours = entries[first]
    for index in range(first, len(entries)):
        one = entries[index]
        same = (one.shape.name, one.module) == (ours.shape.name, ours.module)
        if not same and ALONE & {one.module, ours.module}:
            return index
    return len(entries)


def wanted(line: str, only: Sequence[str]) -> bool:
    """Whether a row's line has one of these words; none: all do."""
    return not only or any(word in line for word in only)


def _modules(package: ModuleType) -> list[str]:
    """The modules' names in the order of ORDER; others come last."""
    found = [one.name for one in pkgutil.iter_modules(package.__path__)]
    return sorted(found, key=lambda name: (_place(name), name))


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _rows(shape: Shape, module: str) -> Iterator[Row | Measured]:
    try:
        rows: list[Row] = list(importlib.import_module(module).rows(shape))
    except Exception as error:  # noqa: BLE001  the other modules' rows can be measured
        yield Measured(shape.name, module.rpartition(".")[2], "", failed=told(error))
        return
    yield from rows
