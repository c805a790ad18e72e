"""Norms and gates that quantize to fp8, compared with a separate launch; and that launch.

For shapes with experts also norms whose output is both whole and quantized, for a router.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from engine.kernels.contract import DualOutputNorms, Kernels, QuantizedOutputKernels
from engine.kernels.floor import Floor
from engine.kernels.gpu.gates import gate_floor
from engine.kernels.gpu.kernels import TritonKernels
from engine.kernels.gpu.norms import norm_floor
from engine.kernels.gpu.rounding import quantize_rows, quantize_rows_floor
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.rows import QuantizedRows, quantize_rows_twin
from engine.kernels.weights import BLOCK

EPS = 1e-5
GROUPS = {"": None, " in blocks": BLOCK}
Asked = Callable[[Kernels | QuantizedOutputKernels], Tensor | QuantizedRows]


def rows(shape: Shape) -> Iterator[Row]:
    """Each for a step of every batch, and for a prompt."""
    if shape.num_experts:
        yield from _before_experts(shape)
    if shape.quantization != "fp8" or shape.num_experts:
        return
    hidden, width = shape.hidden_size, shape.intermediate_size
    attended = shape.num_attention_heads * shape.head_dim
    for tokens in (*shape.batches, shape.prefill):
        for called, group in GROUPS.items():
            plain = partial(_rows, (tokens, attended), shape.dtype, group)
            yield Row(f"rows to fp8{called}", f"{attended} numbers, {tokens} rows", plain)
            norm = partial(_norm, (tokens, hidden), shape.dtype, group)
            yield Row(f"norm to fp8{called}", f"{hidden} numbers, {tokens} rows", norm)
            gate, setting = partial(_gate, (tokens, width), shape.dtype, group), "silu, "
            yield Row(f"gate to fp8{called}", f"{setting}{width} numbers, {tokens} rows", gate)


def _before_experts(shape: Shape) -> Iterator[Row]:
    """Rows of norms before experts, with quantized weights, which changes nothing else."""
    for tokens in (*shape.batches, shape.prefill):
        for called, group in GROUPS.items():
            make = partial(_both, (tokens, shape.hidden_size), shape.dtype, group)
            setting = f"{shape.hidden_size} numbers, {tokens} rows"
            yield Row(f"norm to fp8{called}, and whole", setting, make)


def _both(
    sizes: tuple[int, int], dtype: torch.dtype, group: int | None, device: torch.device
) -> Prepared:
    x, residual = (torch.randn(sizes, dtype=dtype, device=device) for _ in range(2))
    weight = torch.randn(sizes[1], dtype=dtype, device=device)
    given = x, residual, weight, EPS, 1.0

    def whole(norms: DualOutputNorms) -> Tensor:
        """The whole output, which is compared: fp8 would turn a last bit into a whole step."""
        return norms.add_norm(*given)[0].whole

    def behind() -> QuantizedRows:
        return quantize_rows(TritonKernels().add_norm(*given)[0], group)

    return Prepared(
        partial(whole, TritonKernels().dual(group)),
        norm_floor(*sizes, dtype.itemsize, residual=True, written=dtype.itemsize + 1),
        partial(whole, TorchKernels().dual(group)),
        {"rounded in a launch of its own": lambda: behind},
    )


def _rows(
    sizes: tuple[int, int], dtype: torch.dtype, group: int | None, device: torch.device
) -> Prepared:
    """Rows like attention's results, which come unquantized."""
    given = torch.randn(sizes, dtype=dtype, device=device)

    def by_torch() -> Tensor:
        return quantize_rows_twin(given, group).values

    return Prepared(
        lambda: quantize_rows(given, group).values,
        quantize_rows_floor(*sizes, dtype.itemsize, group),
        by_torch,
        {"torch": lambda: by_torch},
    )


def _norm(
    sizes: tuple[int, int], dtype: torch.dtype, group: int | None, device: torch.device
) -> Prepared:
    x, residual = (torch.randn(sizes, dtype=dtype, device=device) for _ in range(2))
    weight = torch.randn(sizes[1], dtype=dtype, device=device)
    floor = norm_floor(*sizes, dtype.itemsize, residual=True, written=1)

    def asked(kernels: Kernels | QuantizedOutputKernels) -> Tensor | QuantizedRows:
        return kernels.add_norm(x, residual, weight, EPS, 1.0)[0]

    return _prepared(asked, floor, group)


def _gate(
    sizes: tuple[int, int], dtype: torch.dtype, group: int | None, device: torch.device
) -> Prepared:
    both = torch.randn(sizes[0], 2 * sizes[1], dtype=dtype, device=device)

    def asked(kernels: Kernels | QuantizedOutputKernels) -> Tensor | QuantizedRows:
        return kernels.gated(both, "silu")

    return _prepared(asked, gate_floor(*sizes, dtype.itemsize, written=1), group)


def _prepared(asked: Asked, floor: Floor, group: int | None) -> Prepared:
    ours, twins = TritonKernels(), TorchKernels()

    def values(kernels: QuantizedOutputKernels) -> Tensor:
        made = asked(kernels)
        assert isinstance(made, QuantizedRows), "as those kernels make them"
        return made.values

    def behind() -> QuantizedRows:
        made = asked(ours)
        assert isinstance(made, Tensor), "as those kernels make them"
        return quantize_rows(made, group)

    return Prepared(
        partial(values, ours.quantized(group)),
        floor,
        partial(values, twins.quantized(group)),
        {"rounded in a launch of its own": lambda: behind},
    )
