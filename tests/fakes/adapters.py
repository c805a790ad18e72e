"""LoRA adapters for the tests' checkpoints, as PEFT makes them, and what PEFT says with one."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.fakes.reference import Reference

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
DEVIATION = 0.3


def make_adapter(base: Path, folder: Path, seed: int = 0, **settings: object) -> Path:
    """Save an adapter of random factors, which are large enough to change what is said."""
    from peft import LoraConfig, get_peft_model  # slow to load

    chosen: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": list(ALL), **settings}
    with _old_names():
        model = get_peft_model(Reference(base).model, LoraConfig(**chosen))
    generator = torch.Generator().manual_seed(seed)
    for name, factor in model.named_parameters():
        if "lora_" in name:
            nn.init.normal_(factor, std=DEVIATION, generator=generator)
    model.save_pretrained(str(folder))
    return folder


class AdaptedReference(Reference):
    """A checkpoint under one adapter, by transformers and PEFT."""

    def __init__(self, base: Path, adapter: Path) -> None:
        from peft import PeftModel  # slow to load

        super().__init__(base)
        with _old_names():
            self.model = PeftModel.from_pretrained(self.model, adapter).eval()


@contextmanager
def _old_names() -> Iterator[None]:
    """PEFT asks transformers for what has another name by now."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        yield


def named(*adapters: Path) -> tuple[str, ...]:
    """As --lora-modules: each adapter by the name of its folder."""
    return tuple(f"{one.name}={one}" for one in adapters)
