"""No step of an engine on a device is the first to launch a kind of kernel: none compiles."""

from pathlib import Path

import pytest

from engine.kernels.gpu.attention_plans import LEAST_STRETCH
from engine.running.warming import row_counts
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.launches import compiled_late

DRAFTS = '{"num_speculative_tokens": 4}'
ENGINES: dict[str, dict[str, object]] = {
    "llama": {"max_num_batched_tokens": 300},
    "llama in 8 bits": {"max_num_batched_tokens": 200, "quantization": "fp8"},
    "qwen3_moe": {"max_num_batched_tokens": 200, "quantization": "fp8"},
    "gpt_oss": {"enforce_eager": True, "quantization": "int4", "speculative_config": DRAFTS},
}


@pytest.mark.parametrize("family", ENGINES)
def test_nothing_is_compiled_while_requests_wait(family: str, tmp_path: Path) -> None:
    folder = make_checkpoint(
        tmp_path, family.partition(" ")[0], max_position_embeddings=2 * LEAST_STRETCH + 300
    )
    early, late = compiled_late(folder, **ENGINES[family])
    assert late == []
    assert {"_decode", "_add_parts", "_prefill", "_rank", "_adjust", "_ban"} <= early
    assert ("_few_rows" in early) == (family == "llama")
    assert {"_survey", "_draw", "weigh", "gather", "settle"} <= early


@pytest.mark.parametrize("most", [1, 2, 3, 64, 65, 8192])
def test_no_kind_of_launch_is_stepped_over(most: int) -> None:
    """A kind that begins at some count of rows ends at twice that or later, or never."""
    counts = row_counts(most)
    assert (counts[0], counts[-1]) == (1, most)
    for first in range(1, most):
        assert any(first < count <= max(2 * first, 2) for count in counts if count <= most)
