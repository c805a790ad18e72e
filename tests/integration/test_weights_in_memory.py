"""What an engine takes of memory for its weights: those of a checkpoint's files are mapped."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fakes.checkpoints import make_checkpoint

root = Path(__file__).parents[2]
MEASURE = """
import re, sys
import torch
from engine.loading import load_engine
from engine.settings import EngineConfig

def held():
    return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])

torch.randn(64, 64) @ torch.randn(64, 64)
before = held()
engine = load_engine(EngineConfig(model=sys.argv[1], kv_cache_memory_bytes=1 << 20, threads=1))
print(held() - before)
"""


@pytest.mark.parametrize(("dtype", "packed"), [("bfloat16", 1), ("float32", 0)])
def test_weights_are_in_memory_once(dtype: str, packed: int, tmp_path: Path) -> None:
    """Most of this model is one tensor, embedding and head at once: it stays in its file.

    Where products are faster with packed weights, the head is a copy.
    """
    wide: dict[str, Any] = {
        "vocab_size": 40_960,
        "hidden_size": 256,
        "intermediate_size": 2_048,
    }
    make_checkpoint(tmp_path, "qwen2", dtype=dtype, tie_word_embeddings=True, **wide)
    (tmp_path / "tokenizer.json").unlink()  # what grammars know of words is not weighed
    size = (tmp_path / "model.safetensors").stat().st_size
    table = 40_960 * 256 * getattr(torch, dtype).itemsize
    told = subprocess.run(
        [sys.executable, "-c", MEASURE, tmp_path], cwd=root, capture_output=True, check=True
    )
    assert int(told.stdout) < packed * table + (size - table) + 0.35 * size
