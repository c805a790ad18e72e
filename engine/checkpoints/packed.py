"""Reads quantized weights of checkpoints (fp8, AWQ, GPTQ) in the format of our kernels.

Nothing is requantized: the numbers and the scales are the checkpoint's, in another layout.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from engine.checkpoints.packing import PER_WORD, Packing
from engine.checkpoints.store import Tensors
from engine.errors import UnusableCheckpoint
from engine.kernels.rows import E4M3
from engine.kernels.weights import (
    BLOCK,
    FOUR_BITS,
    Fp8Weight,
    Int4Weight,
    Weight,
    packed_halves,
)

log = logging.getLogger(__name__)
Take = Callable[..., Tensor]
"""Returns a tensor by name and shape, as it is in its file; None allows any size."""
BITS = 4
ONES = 0x11111111
"""What GPTQ has subtracted from a word of zero points: 1 from each, and one of 0 borrows."""
PIECE = 32
"""Inputs that share a scale if a rank has a part of each group: the kernels' minimum."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The order of a word's numbers, lowest bits first."""
MARKS: Mapping[str, tuple[str, ...]] = {
    "fp8": ("weight_scale_inv", "weight_scale"),
    "compressed fp8": ("weight_scale",),
    "compressed int4": ("weight_packed",),
    "awq": ("qweight",),
    "gptq": ("qweight",),
}
"""Tensors whose presence shows that a product is stored packed: one of these."""
STATIC = ("input_scale", "activation_scale")
"""Static scales of inputs; unused, because scales from the inputs themselves lose less."""
STACKED_SCALES = "_scale_inv"
KV_SCALE = re.compile(
    r"\.self_attn\.(\w+_proj\.|attn\.)?([qkv]|kv)_scale$|\.[kv]_proj\.output_scale$"
)
"""Scales of a KV cache in 8 bits, and of queries for it: engine/models/kv_scales.py."""


def left_over(packing: Packing | None, files: Mapping[str, Tensors]) -> list[str]:
    """Of tensors that no layer took, those that make another model; logs unused KV scales."""
    scales = [name for name in files if KV_SCALE.search(name)]
    if scales:
        log.info("%d scales for a KV cache in 8 bits are not used", len(scales))
    others = sorted(set(files).difference(scales))
    return [name for name in others if not _adds_nothing(packing, files[name], name)]


def _adds_nothing(packing: Packing | None, file: Tensors, name: str) -> bool:
    """A bias of zeros: AutoGPTQ gave one to every product, wanted or not."""
    if packing is None or packing.layout != "gptq" or not name.endswith(".bias"):
        return False
    return not file.get_tensor(name).any()


def read_packed(
    packing: Packing, take: Take, at: str, mark: str, shape: tuple[int, int], ranks: int = 1
) -> Weight:
    """Read the product `at`, [outputs, inputs], which is stored with the tensor `mark`.

    Each of `ranks` ranks has all inputs, or its part of them. Raises UnusableCheckpoint for
    sizes that do not match.
    """
    outputs, inputs = shape
    if packing.group is None:
        return _eight_bits(packing, take, f"{at}.weight", f"{at}.{mark}", shape)
    together = inputs * ranks if packing.ordered else inputs
    if together % packing.group or outputs % PER_WORD:
        sizes = f"{outputs} by {inputs} is not in groups of {packing.group}"
        raise UnusableCheckpoint(f"tensor {at}: {sizes}")
    if packing.layout == "compressed int4":
        return _compressed(packing.group, take, at, outputs, inputs)
    if packing.layout == "awq":
        return _awq(packing.group, take, at, outputs, inputs)
    return _gptq(packing, packing.group, take, at, shape, together)


def read_stack(take: Take, name: str, experts: int, outputs: int, inputs: int) -> list[Weight]:
    """Read experts' fp8 products, stacked as in transformers, with block scales."""
    values, scales = (f"{name}{end}" for end in ("", STACKED_SCALES))
    each = take(values, experts, outputs, inputs)
    squares = take(scales, experts, -(-outputs // BLOCK), -(-inputs // BLOCK))
    _refuse_other_than_eight_bits(each, values)
    return [
        _scaled(each[one], squares[one].float().repeat_interleave(BLOCK, 0)[:outputs])
        for one in range(experts)
    ]


def _eight_bits(
    packing: Packing, take: Take, name: str, mark: str, shape: tuple[int, int]
) -> Weight:
    values = take(name, *shape)
    _refuse_other_than_eight_bits(values, name)
    outputs, inputs = shape
    if packing.tensors:
        scales = take(mark, 1).expand(outputs, 1)
    elif not packing.blocks:
        scales = take(mark, outputs, 1)
    else:
        squares = take(mark, -(-outputs // BLOCK), -(-inputs // BLOCK)).float()
        scales = squares.repeat_interleave(BLOCK, 0)[:outputs]
    return _scaled(values, scales)


def _refuse_other_than_eight_bits(values: Tensor, name: str) -> None:
    if values.dtype is not E4M3:
        raise UnusableCheckpoint(f"tensor {name} is {values.dtype}, and has scales")


def _scaled(values: Tensor, scales: Tensor) -> Fp8Weight:
    """`values` [outputs, inputs], `scales` [outputs, 1 or blocks of inputs]."""
    return Fp8Weight(values[None], scales.float().T.contiguous()[None])


def _compressed(group: int, take: Take, at: str, outputs: int, inputs: int) -> Weight:
    """compressed-tensors: words along the inputs, and a zero point of 8 everywhere."""
    words = take(f"{at}.weight_packed", outputs, inputs // PER_WORD)
    scales = take(f"{at}.weight_scale", outputs, inputs // group)
    take(f"{at}.weight_shape", 2)
    return _grouped(unpacked(words), scales.T, None, group)


def _awq(group: int, take: Take, at: str, outputs: int, inputs: int) -> Weight:
    """AWQ (Lin et al. 2023): words along the outputs."""
    groups = inputs // group
    zeros = unpacked(take(f"{at}.qzeros", groups, outputs // PER_WORD))
    scales = take(f"{at}.scales", groups, outputs)
    words = take(f"{at}.qweight", inputs, outputs // PER_WORD)
    numbers, zeros = (_awq_order(one) for one in (unpacked(words), zeros))
    return _grouped(numbers.T, scales, zeros, group)


def _gptq(
    packing: Packing, group: int, take: Take, at: str, shape: tuple[int, int], together: int
) -> Weight:
    """GPTQ (Frantar et al. 2022): words along the inputs; all ranks have `together` inputs."""
    outputs, inputs = shape
    scales = take(f"{at}.scales", None, outputs)
    if (told := len(scales) * group) not in (inputs, together):
        raise UnusableCheckpoint(f"tensor {at}.scales is of {told} inputs, not {inputs}")
    zeros = unpacked(take(f"{at}.qzeros", len(scales), outputs // PER_WORD) + ONES)
    places = take(f"{at}.g_idx", inputs).long()
    numbers = unpacked(take(f"{at}.qweight", inputs // PER_WORD, outputs).T)
    if told > inputs:
        if not 0 <= places.min() <= places.max() < len(scales):
            raise UnusableCheckpoint(f"tensor {at}.g_idx: a group beyond the last")
        return _in_pieces(numbers, scales, zeros, places)
    order = _order(packing, group, places, at)
    numbers = numbers if order is None else numbers[:, order]
    made = _grouped(numbers, scales, zeros, group)
    return made if order is None else replace(made, order=order[None].int())


def _in_pieces(numbers: Tensor, scales: Tensor, zeros: Tensor, places: Tensor) -> Int4Weight:
    """A rank's inputs, whose groups are in `places`: its part of a group becomes pieces with
    the group's scales and zeros, the last one padded with places without inputs.
    """
    order = places.argsort(stable=True)
    counts = places.bincount(minlength=len(scales))
    pieces = -(-counts // PIECE)
    empty = (pieces * PIECE - counts).cumsum(0) - (pieces * PIECE - counts)  # before a group
    owners = torch.arange(len(scales), device=places.device).repeat_interleave(pieces)
    filled = order.new_full((len(owners) * PIECE,), -1)
    filled[torch.arange(len(order), device=order.device) + empty[places[order]]] = order
    made = _grouped(numbers[:, filled.clamp(min=0)], scales[owners], zeros[owners], PIECE)
    return replace(made, inputs=len(order), order=filled[None].int())


def _order(packing: Packing, group: int, places: Tensor, at: str) -> Tensor | None:
    """The inputs sorted by their groups, `places`; None if each group is contiguous.

    Raises UnusableCheckpoint if the groups contradict the config.
    """
    neat = torch.arange(len(places), device=places.device) // group
    if packing.ordered:
        order = places.argsort(stable=True)
        if torch.equal(places[order], neat):
            return order
        raise UnusableCheckpoint(f"tensor {at}.g_idx: not every group has {group} inputs")
    if not torch.equal(places - places[:1], neat):  # a rank's part may begin at any group
        raise UnusableCheckpoint(f"tensor {at}.g_idx: groups out of order without desc_act")
    return None


def unpacked(words: Tensor) -> Tensor:
    """[rows, words] int32 to [rows, 8 * words] uint8, lowest bits first."""
    shifts = torch.arange(0, PER_WORD * BITS, BITS, dtype=torch.int32, device=words.device)
    numbers = (words.unsqueeze(-1) >> shifts) & FOUR_BITS
    return numbers.flatten(1).to(torch.uint8)


def _awq_order(numbers: Tensor) -> Tensor:
    order = torch.tensor(AWQ_ORDER, device=numbers.device)
    ordered: Tensor = numbers.unflatten(1, (-1, PER_WORD))[..., order]
    return ordered.flatten(1)


def _grouped(numbers: Tensor, scales: Tensor, zeros: Tensor | None, group: int) -> Int4Weight:
    """`numbers` [outputs, inputs], `scales` and `zeros` [groups, outputs]."""
    packed = packed_halves(numbers.unflatten(1, (-1, group)))
    kept = None if zeros is None else zeros.contiguous()[None]
    return Int4Weight(packed[None], scales.contiguous()[None], kept, numbers.shape[1])
