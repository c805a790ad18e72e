"""What a checkpoint says of weights that it stores in 8 or 4 bits. Torch-free.

Layouts are told apart by `quant_method`, in the words of transformers and vLLM; anything of
them that is not done here is refused by its name, never guessed.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

Layout = Literal["fp8", "compressed fp8", "compressed int4", "awq", "gptq"]
BLOCK = 128
GROUPS = (32, 64, 128)
PER_WORD = 8  # numbers of four bits in 32


class Packing(msgspec.Struct, frozen=True, kw_only=True):
    """`blocks`: scales of 8 bits are of 128 by 128; `group`: inputs that share one of four."""

    layout: Layout
    blocks: bool = False
    group: int | None = None
    zeros: bool = False


def read_packing(raw: Mapping[str, Any]) -> Packing | None:
    """Of config.json's `quantization_config`; raises ValueError, saying what is not done."""
    given = raw.get("quantization_config")
    if not given:
        return None
    method = given.get("quant_method") if isinstance(given, Mapping) else given
    readers = {
        "fp8": _fp8,
        "fbgemm_fp8": _fbgemm,
        "compressed-tensors": _compressed,
        "awq": _awq,
        "gptq": _gptq,
    }
    if not isinstance(given, Mapping) or method not in readers:
        known = ", ".join(readers)
        raise ValueError(
            f"quantized by quant_method {method}, which is not supported; these are: {known}"
        )
    try:
        return readers[method](given)
    except ValueError as error:
        raise ValueError(f"quantized by {method}: {error}") from error


def _only(given: Mapping[str, Any], **accepted: tuple[object, ...]) -> None:
    for key, values in accepted.items():
        if given.get(key) not in values:
            raise ValueError(f"{key} {given.get(key)} is not supported")


def _fp8(given: Mapping[str, Any]) -> Packing:
    """DeepSeek's."""
    _only(
        given,
        weight_block_size=([BLOCK, BLOCK],),
        activation_scheme=("dynamic", None),
        fmt=("e4m3", None),
        scale_fmt=("float", None),
        expert_dtype=("fp8", None),
    )
    return Packing(layout="fp8", blocks=True)


def _fbgemm(given: Mapping[str, Any]) -> Packing:
    """Its bound of activations is not needed: a token's scale is that of its own numbers."""
    del given
    return Packing(layout="compressed fp8")


def _compressed(given: Mapping[str, Any]) -> Packing:
    groups = list((given.get("config_groups") or {}).values())
    if len(groups) != 1:
        raise ValueError(f"{len(groups)} config_groups are not supported")
    _only(given, format=("float-quantized", "pack-quantized"), kv_cache_scheme=(None,))
    weights, inputs = (groups[0].get(key) or {} for key in ("weights", "input_activations"))
    if given["format"] == "pack-quantized":
        if inputs:
            raise ValueError("input_activations with pack-quantized are not supported")
        _only(
            weights,
            num_bits=(4,),
            type=("int", None),
            strategy=("group", None),
            group_size=GROUPS,
            symmetric=(True, None),
            actorder=(None, "static", "weight", False),
        )
        return Packing(layout="compressed int4", group=weights["group_size"])
    _only(weights, num_bits=(8,), type=("float",), strategy=("channel", "block"))
    _only(inputs, num_bits=(8,), type=("float",), strategy=("token", "group"), dynamic=(True,))
    blocks = weights["strategy"] == "block"
    if blocks:
        _only(weights, block_structure=([BLOCK, BLOCK],))
    return Packing(layout="compressed fp8", blocks=blocks)


def _awq(given: Mapping[str, Any]) -> Packing:
    version = ("gemm", "GEMM", None)
    _only(given, bits=(4,), group_size=GROUPS, zero_point=(True,), version=version)
    return Packing(layout="awq", group=given["group_size"], zeros=True)


def _gptq(given: Mapping[str, Any]) -> Packing:
    _only(
        given,
        bits=(4,),
        group_size=GROUPS,
        desc_act=(False, None),
        checkpoint_format=("gptq", None),
    )
    return Packing(layout="gptq", group=given["group_size"], zeros=True)


class Axis(NamedTuple):
    """Which dimension of a tensor it is, and how many of a product's numbers are one there."""

    dim: int
    unit: int = 1


class Axes(NamedTuple):
    """Where a product's outputs and its inputs lie in one of its tensors; None: nowhere."""

    outputs: Axis | None = None
    inputs: Axis | None = None


ROWS, COLUMNS = Axis(0), Axis(1)
PLAIN: Mapping[str, Axes] = {"weight": Axes(ROWS, COLUMNS), "bias": Axes(ROWS)}


def axes_of(packing: Packing | None) -> Mapping[str, Axes]:
    """Of all tensors that a product may have, by the last word of their names."""
    if packing is None:
        return PLAIN
    if packing.group is None:
        square = Axes(Axis(0, BLOCK), Axis(1, BLOCK)) if packing.blocks else Axes(ROWS)
        return {**PLAIN, "weight_scale_inv": square, "weight_scale": square}
    words, grouped = Axis(1, PER_WORD), Axis(0, packing.group)
    if packing.layout == "compressed int4":
        return {
            **PLAIN,
            "weight_packed": Axes(ROWS, words),
            "weight_scale": Axes(ROWS, Axis(1, packing.group)),
            "weight_shape": Axes(),
        }
    awq = packing.layout == "awq"
    return {
        **PLAIN,
        "qweight": Axes(words, ROWS) if awq else Axes(COLUMNS, Axis(0, PER_WORD)),
        "g_idx": Axes(inputs=ROWS),
        "qzeros": Axes(words, grouped),
        "scales": Axes(COLUMNS, grouped),
    }
