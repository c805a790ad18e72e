"""No step of an engine on a device is the first to launch a kind of kernel: none compiles."""

from pathlib import Path

import pytest

from engine.kernels.gpu.attention_plans import LEAST_STRETCH, plan_tiles
from engine.kernels.gpu.paged_call import Heads
from engine.running.device import MOST_NARROW
from engine.running.warming import row_counts, with_progress
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.launches import compiled_late

DRAFTS = '{"num_speculative_tokens": 4}'
ENGINES: dict[str, dict[str, object]] = {
    "llama": {"max_num_batched_tokens": 300},
    "llama in 8 bits": {"max_num_batched_tokens": 200, "quantization": "fp8"},
    "mixtral": {"max_num_batched_tokens": 200},
    "qwen3_moe": {"max_num_batched_tokens": 200, "quantization": "fp8"},
    "glm4_moe": {"max_num_batched_tokens": 200, "quantization": "fp8"},
    "gpt_oss": {"enforce_eager": True, "quantization": "int4", "speculative_config": DRAFTS},
}


@pytest.mark.parametrize("family", ENGINES)
def test_nothing_is_compiled_while_requests_wait(family: str, tmp_path: Path) -> None:
    folder = make_checkpoint(
        tmp_path, family.partition(" ")[0], max_position_embeddings=2 * LEAST_STRETCH + 300
    )
    settings = ENGINES[family]
    early, late = compiled_late(folder, **settings)
    assert late == []
    assert {"_decode", "_add_parts", "_prefill", "_rank", "_adjust", "_ban"} <= early
    assert ("_few_rows" in early) == (family != "llama in 8 bits")  # routers have few rows, too
    assert ("_few_rows_fp8" in early) == (settings.get("quantization") == "fp8")
    assert ({"_few_row_gates", "_few_row_mixture"} <= early) == (family == "mixtral")
    assert {"_survey", "_draw", "weigh", "gather", "settle"} <= early


@pytest.mark.parametrize("most", [1, 2, 3, 64, 65, 8192])
def test_no_kind_of_launch_is_stepped_over(most: int) -> None:
    """A kind that begins at some count of rows ends at twice that or later, or never."""
    counts = row_counts(most)
    assert (counts[0], counts[-1]) == (1, most)
    for first in range(1, most):
        assert any(first < count <= max(2 * first, 2) for count in counts if count <= most)
    chunks = [count - 1 for count in counts if count > 1]  # beside a single token
    for first in range(1, most - 1):
        assert any(first < length <= 2 * first for length in chunks)


@pytest.mark.parametrize("heads", [(32, 8, 128), (32, 4, 128), (8, 8, 80), (128, 1, 576)])
@pytest.mark.parametrize("most", [MOST_NARROW, 8192])
def test_chunks_of_a_warm_up_meet_all_shapes_of_tiles(
    heads: tuple[int, int, int], most: int
) -> None:
    """Beside a single token; over one block, where nothing is split, up to MOST_NARROW."""
    num_heads, kv_heads, width = heads
    shape = Heads(num_heads, kv_heads, width, width, 2, 2)
    met = {plan_tiles(shape, count - 1) for count in row_counts(most) if count > 1}
    assert {plan_tiles(shape, longest) for longest in range(1, 9000)} == met


def test_a_log_has_no_progress(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)  # to rich, that makes it a terminal
    assert list(with_progress(range(3), "compiling kernels")) == [0, 1, 2]
    assert capsys.readouterr() == ("", "")
