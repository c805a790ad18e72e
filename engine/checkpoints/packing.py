"""Reads `quantization_config`: how a checkpoint stores weights in 8 or 4 bits. Torch-free.

Layouts are distinguished by `quant_method`, with transformers' and vLLM's names; anything that
is not supported here is refused by its name, never guessed.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec

Layout = Literal["fp8", "compressed fp8", "compressed int4", "awq", "gptq"]
BLOCK = 128
GROUPS = (32, 64, 128)
SCHEMES = ("dynamic", "static")
PER_WORD = 8  # int4 numbers in 32 bits


class Packing(msgspec.Struct, frozen=True, kw_only=True):
    """How weights are stored. `group`: how many inputs share a scale in int4 weights.

    fp8 weights have a scale for each output; with `blocks`, for each 128 by 128 numbers; with
    `tensors`, one for all. `static`: there are scales of inputs as well. `ordered`: groups may
    have any inputs, not just neighbours.
    """

    layout: Layout
    blocks: bool = False
    tensors: bool = False
    static: bool = False
    group: int | None = None
    zeros: bool = False
    ordered: bool = False


def read_packing(raw: Mapping[str, Any]) -> Packing | None:
    """Parse config.json's `quantization_config`; a ValueError names what is not supported."""
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
        "modelopt": _modelopt,
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
    """fp8 with block scales (DeepSeek), or with one scale per tensor (vLLM, Mistral)."""
    _only(given, fmt=("e4m3", "float8_e4m3fn", None), expert_dtype=("fp8", None))
    _only(given, scale_fmt=("float", "ue8m0", None), activation_scheme=(*SCHEMES, None))
    static = given.get("activation_scheme") == "static"
    if given.get("weight_block_size") is None:
        return Packing(layout="fp8", tensors=True, static=static)
    _only(given, weight_block_size=([BLOCK, BLOCK],), activation_scheme=("dynamic", None))
    return Packing(layout="fp8", blocks=True)


def _fbgemm(given: Mapping[str, Any]) -> Packing:
    """FBGEMM's fp8. Its bound of activations is ignored: each token has its own scale."""
    del given
    return Packing(layout="compressed fp8")


def _modelopt(given: Mapping[str, Any]) -> Packing | None:
    """NVIDIA ModelOpt's fp8: one scale for a tensor. None: of a KV cache only."""
    if "quant_algo" in given and given["quant_algo"] is None:
        return None
    _only(given, quant_algo=("FP8",))
    return Packing(layout="fp8", tensors=True, static=True)


def _compressed(given: Mapping[str, Any]) -> Packing | None:
    """None: only a KV cache was to be quantized, which ours is not."""
    groups = list((given.get("config_groups") or {}).values())
    if not groups and given.get("kv_cache_scheme"):
        return None
    if len(groups) != 1:
        raise ValueError(f"{len(groups)} config_groups are not supported")
    _only(given, format=("float-quantized", "pack-quantized"))
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
    how = weights.get("strategy")
    _only(weights, num_bits=(8,), type=("float",), strategy=("channel", "block", "tensor"))
    _only(inputs, num_bits=(8,), type=("float",), strategy=("token", "group", "tensor"))
    static = inputs.get("strategy") == "tensor" and not inputs.get("dynamic")
    if not static:
        _only(inputs, dynamic=(True,))
    if how == "block":
        _only(weights, block_structure=([BLOCK, BLOCK],))
    known = {"blocks": how == "block", "tensors": how == "tensor"}
    return Packing(layout="compressed fp8", static=static, **known)


def _awq(given: Mapping[str, Any]) -> Packing:
    packed = ("gemm", "GEMM", None)  # which newer configs call their format
    _only(given, bits=(4,), group_size=GROUPS, zero_point=(True,))
    _only(given, version=packed, format=packed)
    return Packing(layout="awq", group=given["group_size"], zeros=True)


def _gptq(given: Mapping[str, Any]) -> Packing:
    _only(
        given,
        bits=(4,),
        group_size=GROUPS,
        desc_act=(True, False, None),
        checkpoint_format=("gptq", None),
        format=("gptq", None),
    )
    ordered = given.get("desc_act") is True
    return Packing(layout="gptq", group=given["group_size"], zeros=True, ordered=ordered)


class Axis(NamedTuple):
    """A tensor's dimension, and how many outputs or inputs one index of it stands for."""

    dim: int
    unit: int = 1


class Axes(NamedTuple):
    """The axes of a product's outputs and inputs in one of its tensors; None: it has none."""

    outputs: Axis | None = None
    inputs: Axis | None = None


ROWS, COLUMNS = Axis(0), Axis(1)
PLAIN: Mapping[str, Axes] = {"weight": Axes(ROWS, COLUMNS), "bias": Axes(ROWS)}


def axes_of(packing: Packing | None) -> Mapping[str, Axes]:
    """The axes of all tensors that a product may have, by the last word of their names."""
    if packing is None:
        return PLAIN
    if packing.group is None:
        square = Axes(Axis(0, BLOCK), Axis(1, BLOCK)) if packing.blocks else Axes(ROWS)
        square = Axes() if packing.tensors else square
        return {**PLAIN, "weight_scale_inv": square, "weight_scale": square}
    words = Axis(1, PER_WORD)
    grouped = None if packing.ordered else Axis(0, packing.group)  # a part may use any group
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
