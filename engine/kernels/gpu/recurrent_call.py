"""Checks the arguments of kernels for layers that keep a state."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.kernels.contract import Chunks, Contexts
from engine.kernels.delta_net import DeltaWeights
from engine.kernels.gpu.paged_call import DTYPES, power_of_two
from engine.kernels.mamba import MambaWeights
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentShape
from engine.kernels.short_convolution import ConvolutionWeights

NARROWEST = 16  # numbers: a side of a product

Net = DeltaWeights | MambaWeights | ConvolutionWeights


def fits_kernels(shape: RecurrentShape) -> bool:
    """Whether there are kernels for heads of these widths."""
    widths = shape.key_width, shape.value_width
    return all(width == power_of_two(width) >= NARROWEST for width in widths)


@dataclass(frozen=True, slots=True)
class RecurrentCall:
    """A call that fits together."""

    shape: RecurrentShape
    strides: tuple[int, int, int, int, int]  # of rows of inputs, tables, and blocks of states
    sizes: dict[str, int]  # of heads, which are constants

    @classmethod
    def of(
        cls,
        inputs: RecurrentInputs,
        states: LayerStates,
        contexts: Contexts,
        weights: Net,
    ) -> "RecurrentCall":
        """Raises ValueError for what does not fit."""
        shape = weights.shape
        if not isinstance(weights, ConvolutionWeights) and not fits_kernels(shape):
            raise ValueError(
                f"key_width {shape.key_width} and value_width {shape.value_width} are not both "
                f"powers of two from {NARROWEST} on"
            )
        _check_inputs(inputs, weights)
        _check_states(states, contexts, shape)
        _check_weights(weights)
        strides = (
            inputs.mixed.stride(0), inputs.rates.stride(0), contexts.tables.stride(0),
            states.memory.stride(0), states.inputs.stride(0),
        )  # fmt: skip
        sizes = {
            "KEY_HEADS": shape.key_heads,
            "VALUE_HEADS": shape.value_heads,
            "KEY": shape.key_width,
            "VALUE": shape.value_width,
        }
        return cls(shape, strides, sizes)

    def of_steps(
        self, inputs: RecurrentInputs, contexts: Contexts, out: Tensor | None
    ) -> Tensor:
        """The output, of one token of each sequence. Raises ValueError for more or fewer."""
        if len(contexts.tables) != len(inputs.mixed):
            raise ValueError(f"{len(contexts.tables)} tables for {len(inputs.mixed)} tokens")
        return self._output(inputs, out)

    def of_chunks(
        self, inputs: RecurrentInputs, contexts: Contexts, chunks: Chunks, out: Tensor | None
    ) -> Tensor:
        """The output, of chunks. Raises ValueError for more or fewer than sequences."""
        if chunks.firsts.shape != (len(contexts.tables) + 1,):
            raise ValueError(f"{len(chunks.firsts)} firsts for {len(contexts.tables)} tables")
        return self._output(inputs, out)

    def _output(self, inputs: RecurrentInputs, out: Tensor | None) -> Tensor:
        """[tokens, values]: `out`, if it is that, or new."""
        sizes, dtype = (len(inputs.mixed), self.shape.values), inputs.mixed.dtype
        if out is None:
            return inputs.mixed.new_empty(sizes)
        if out.shape != sizes or out.dtype is not dtype or not out.is_contiguous():
            raise ValueError(f"out {list(out.shape)} {out.dtype} is not {list(sizes)}, whole")
        return out


def _check_inputs(inputs: RecurrentInputs, weights: Net) -> None:
    (mixed, rates), shape = inputs, weights.shape
    of_rates = 2 if isinstance(weights, DeltaWeights) else 1
    columns = shape.channels + shape.values, of_rates * shape.value_heads
    for name, one, width in zip(("mixed", "rates"), (mixed, rates), columns, strict=True):
        if one.shape != (len(mixed), width) or one.stride(1) != 1:
            raise ValueError(
                f"{name} {list(one.shape)} is not [{len(mixed)}, {width}], in rows"
            )
        if one.dtype not in DTYPES:
            raise ValueError(f"{name} is {one.dtype}")


def _check_states(states: LayerStates, contexts: Contexts, shape: RecurrentShape) -> None:
    heads = shape.value_heads, shape.key_width, shape.value_width
    last = shape.taps, shape.channels
    for name, one, sizes in (("memory", states.memory, heads), ("inputs", states.inputs, last)):
        if one.shape[1:] != sizes or not one[:1].is_contiguous() or one.dtype != torch.float32:
            told = f"{list(one.shape)} {one.dtype}"
            raise ValueError(f"{name} of states {told} is not [blocks, *{sizes}] in float32")
    tables = contexts.tables
    if tables.dim() != 2 or tables.dtype is not torch.int32 or tables.stride(1) != 1:
        raise ValueError(f"tables are no rows of int32: {list(tables.shape)} {tables.dtype}")
    if not 0 <= states.place < tables.shape[1]:
        raise ValueError(f"place {states.place} is none of {tables.shape[1]} state blocks")
    if contexts.lengths.shape != (len(tables),):
        raise ValueError(f"{len(contexts.lengths)} lengths for {len(tables)} tables")


def _check_weights(weights: Net) -> None:
    shape = weights.shape
    if shape.value_heads % shape.key_heads:
        raise ValueError(
            f"{shape.value_heads} value_heads share {shape.key_heads} key_heads unevenly"
        )
    for name, sizes in _sizes(weights).items():
        one: Tensor = getattr(weights, name)
        if one.shape != sizes or not one.is_contiguous():
            raise ValueError(f"{name} {list(one.shape)} is not {list(sizes)}, whole")


def _sizes(weights: Net) -> dict[str, tuple[int, ...]]:
    """Of all that it has, by name."""
    shape = weights.shape
    each: dict[str, tuple[int, ...]] = {"convolution": (shape.channels, shape.taps + 1)}
    if isinstance(weights, ConvolutionWeights):
        return each if weights.bias is None else each | {"bias": (shape.channels,)}
    each |= dict.fromkeys(("decay", "offset"), (shape.value_heads,))
    if isinstance(weights, DeltaWeights):
        return each | {"norm": (shape.value_width,)}
    each |= {"bias": (shape.channels,), "skip": (shape.value_heads,)}
    if weights.norm is None:
        return each
    if shape.values % weights.norm_groups:
        raise ValueError(f"{shape.values} values are not in {weights.norm_groups} norm_groups")
    return each | {"norm": (shape.values,)}
