"""Stores a checkpoint's products in few bits, in the layouts that others publish.

Written from what the layouts are, number by number, and not from how we read them.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any
from zlib import crc32

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.checkpoints.checkpoint import WEIGHTS
from tests.fakes.checkpoints import edit_config

GROUP, SIDE = 32, 128
PRODUCTS = (
    "_proj.weight",
    *(".w1.weight", ".w2.weight", ".w3.weight"),  # Mixtral's experts
    *("_qkv.weight", "_qkvz.weight", "_proj_z.weight"),  # Qwen3.5's states
    *("shared_mlp.input_linear.weight", "shared_mlp.output_linear.weight"),  # Granite 4.0's
)
Tensors = dict[str, Tensor]
Packed = tuple[Tensors, Tensor]
"""What stands for a weight, by the ends of their names, and what it is worth."""

_EIGHT = {"num_bits": 8, "type": "float"}
CONFIGS: Mapping[str, dict[str, Any]] = {
    "fp8": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [SIDE, SIDE],
    },
    "fp8 ue8m0": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "scale_fmt": "ue8m0",
        "weight_block_size": [SIDE, SIDE],
    },
    "fp8 static": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8 of ModelOpt": {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_scheme": {**_EIGHT, "dynamic": False},
        "ignore": ["lm_head"],
    },
    "fp8 of Mistral": {
        "quant_method": "fp8",
        "activation_scheme": "static",
        "weight_block_size": None,
    },
    "float-quantized static": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "weights": {**_EIGHT, "strategy": "tensor", "dynamic": False},
                "input_activations": {**_EIGHT, "strategy": "tensor", "dynamic": False},
            }
        },
    },
    "fbgemm_fp8": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
    "float-quantized": {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**_EIGHT, "strategy": "channel", "dynamic": False},
                "input_activations": {**_EIGHT, "strategy": "token", "dynamic": True},
            }
        },
    },
    "pack-quantized": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "num_bits": 4,
                    "type": "int",
                    "strategy": "group",
                    "group_size": GROUP,
                    "symmetric": True,
                },
                "input_activations": None,
            }
        },
    },
    "awq": {
        "quant_method": "awq",
        "bits": 4,
        "group_size": GROUP,
        "zero_point": True,
        "version": "gemm",
    },
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False},
}
ACT_ORDER = {**CONFIGS["gptq"], "desc_act": True}


def pack(folder: Path, packed: Path, layout: str) -> None:
    """A copy at `packed`, whose numbers `folder` then has in float32."""
    _pack(folder, packed, CONFIGS[layout], lambda _, weight: PACKERS[layout](weight))


def pack_in_act_order(folder: Path, packed: Path) -> None:
    """As `pack`, for GPTQ whose groups are of inputs that are spread.

    What reads the same inputs has the same groups, and all others have others.
    """

    def ordered(name: str, weight: Tensor) -> Packed:
        generator = torch.Generator().manual_seed(crc32(name.rsplit(".", 2)[0].encode()))
        return _gptq(weight, torch.randperm(weight.shape[1], generator=generator))

    _pack(folder, packed, ACT_ORDER, ordered)


def _pack(
    folder: Path,
    packed: Path,
    config: dict[str, Any],
    packer: Callable[[str, Tensor], Packed],
) -> None:
    copytree(folder, packed)
    plain, stored = load_file(folder / WEIGHTS), dict[str, Tensor]()
    for name, weight in plain.items():
        if not name.endswith(PRODUCTS):
            stored[name] = weight
            continue
        parts, plain[name] = packer(name, weight.float())
        stored |= {f"{name.removesuffix('.weight')}.{end}": one for end, one in parts.items()}
    save_file(plain, folder / WEIGHTS, {"format": "pt"})
    save_file(stored, packed / WEIGHTS, {"format": "pt"})
    edit_config(packed, {"quantization_config": config})


def pack_stacks(folder: Path, packed: Path) -> None:
    """As `pack`, in blocks of 8 bits, where experts are stacked in one tensor each."""
    pack(folder, packed, "fp8")
    plain, stored = load_file(folder / WEIGHTS), load_file(packed / WEIGHTS)
    for name in [one for one in plain if one.endswith(("experts.gate_up_proj", "down_proj"))]:
        pairs = [_blocks(expert) for expert in plain[name].float()]
        plain[name] = torch.stack([worth for _, worth in pairs])
        for end, one in (("", "weight"), ("_scale_inv", "weight_scale_inv")):
            stored[name + end] = torch.stack([parts[one] for parts, _ in pairs])
    save_file(plain, folder / WEIGHTS, {"format": "pt"})
    save_file(stored, packed / WEIGHTS, {"format": "pt"})


def spread(folder: Path, count: int) -> None:
    """A checkpoint's tensors over so many files, with an index: scales far from weights."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    files = {name: f"model-{at % count + 1:05}.safetensors" for at, name in enumerate(tensors)}
    for file in {*files.values()}:
        part = {name: one for name, one in tensors.items() if files[name] == file}
        save_file(part, folder / file, {"format": "pt"})
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": files}))


def _blocks(weight: Tensor, *, powers: bool = False) -> Packed:
    rows, columns = weight.shape
    values = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scales, worth = torch.empty(-(-rows // SIDE), -(-columns // SIDE)), weight.clone()
    for down in range(scales.shape[0]):
        for across in range(scales.shape[1]):
            at = (
                slice(down * SIDE, (down + 1) * SIDE),
                slice(across * SIDE, (across + 1) * SIDE),
            )
            scale = weight[at].abs().max() / 448
            scale = torch.exp2(scale.log2().ceil()) if powers else scale
            values[at] = (weight[at] / scale).to(values.dtype)
            scales[down, across], worth[at] = scale, values[at].float() * scale
    kind = torch.float8_e8m0fnu if powers else torch.float32
    return {"weight": values, "weight_scale_inv": scales.to(kind)}, worth


def _tensors(weight: Tensor, *, scale: str, bound: str, shape: tuple[int, ...]) -> Packed:
    """One scale for all, and one of inputs that would ruin them if it were used."""
    worth = weight.abs().max() / 448
    values = (weight / worth).to(torch.float8_e4m3fn)
    parts = {"weight": values, scale: worth.view(shape), bound: torch.full(shape, 1e-6)}
    return parts, values.float() * worth


def _channels(weight: Tensor) -> Packed:
    scales = weight.abs().amax(1, keepdim=True) / 448
    values = (weight / scales).to(torch.float8_e4m3fn)
    return {"weight": values, "weight_scale": scales}, values.float() * scales


def _drawn(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers 0 .. 15 [rows, columns], zeros and scales [rows, groups].

    Any will do, and a weight's are the same each time.
    """
    rows, columns = weight.shape
    generator = torch.Generator().manual_seed(crc32(weight.numpy().tobytes()))
    numbers = torch.randint(0, 16, (rows, columns), generator=generator)
    zeros = torch.randint(0, 16, (rows, columns // GROUP), generator=generator)
    scales = torch.rand(rows, columns // GROUP, generator=generator) * 0.03 + 0.01
    return numbers, zeros, scales.half()


def _worth(
    numbers: Tensor, zeros: Tensor | int, scales: Tensor, groups: Tensor | None = None
) -> Tensor:
    """`groups`: of each column; None: so many neighbours are one."""
    groups = torch.arange(numbers.shape[1]) // GROUP if groups is None else groups
    if isinstance(zeros, Tensor):
        zeros = zeros[:, groups]
    return (numbers - zeros) * scales.float()[:, groups]


def _words(numbers: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Eight numbers of a row in 32 bits: that at order[i] in the i-th four of them."""
    words = torch.zeros(numbers.shape[0], numbers.shape[1] // 8, dtype=torch.int64)
    for place, which in enumerate(order):
        words |= numbers[:, which::8] << (4 * place)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _compressed(weight: Tensor) -> Packed:
    numbers, _, scales = _drawn(weight)
    parts = {
        "weight_packed": _words(numbers),
        "weight_scale": scales,
        "weight_shape": torch.tensor(weight.shape),
    }
    return parts, _worth(numbers, 8, scales)


def _awq(weight: Tensor) -> Packed:
    numbers, zeros, scales = _drawn(weight)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {
        "qweight": _words(numbers.T, order),
        "qzeros": _words(zeros.T, order),
        "scales": scales.T.contiguous(),
    }
    return parts, _worth(numbers, zeros, scales)


def _gptq(weight: Tensor, places: Tensor | None = None) -> Packed:
    """`places`: where each column would be if those of a group were neighbours."""
    groups = (torch.arange(weight.shape[1]) if places is None else places) // GROUP
    numbers, zeros, scales = _drawn(weight)
    parts = {
        "qweight": _words(numbers).T.contiguous(),
        "qzeros": _words(zeros.T) - 0x11111111,  # from each, and a zero borrows
        "scales": scales.T.contiguous(),
        "g_idx": groups.int(),
    }
    return parts, _worth(numbers, zeros, scales, groups)


PACKERS: Mapping[str, Callable[[Tensor], Packed]] = {
    "fp8": _blocks,
    "fp8 ue8m0": partial(_blocks, powers=True),
    "fp8 static": partial(_tensors, scale="weight_scale", bound="input_scale", shape=()),
    "fp8 of ModelOpt": partial(_tensors, scale="weight_scale", bound="input_scale", shape=()),
    "fp8 of Mistral": partial(
        _tensors, scale="weight_scale_inv", bound="activation_scale", shape=()
    ),
    "float-quantized static": partial(
        _tensors, scale="weight_scale", bound="input_scale", shape=(1,)
    ),
    "fbgemm_fp8": _channels,
    "float-quantized": _channels,
    "pack-quantized": _compressed,
    "awq": _awq,
    "gptq": _gptq,
}
