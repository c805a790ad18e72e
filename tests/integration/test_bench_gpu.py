"""The bench of a GPU, whole, through Triton's interpreter: that it runs, not how fast."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

root = Path(__file__).parents[2]
RIVALS = {
    "decode attention": {"sdpa, dense", "flex, dense"},
    "prefill attention": {"sdpa, dense", "flex, dense"},
    "turns and writes": {"torch"},
    "norm": {"torch"},
    "norm with a residual": {"torch"},
    "gate": {"torch"},
    "sampling": {"torch"},
    "penalties": set[str](),
    "masks": {"torch"},
    "log-probabilities": {"torch"},
    "expert sort": {"torch sort"},
    "expert combine": {"torch sum"},
    "experts of few rows": {"sorted, in tiles, and the rest apart"},
    "grouped product": {"torch._grouped_mm whole"},
    "pieces of blocks": {"torch"},
    "checksums of blocks": set[str](),
}
"""Of each kernel's rows, in shapes with experts."""


def test_the_whole_bench_runs_on_a_cpu(tmp_path: Path) -> None:
    rows = results(tmp_path / "results.json", "--shapes", "tiny-experts")
    assert all(row["seconds"] > 0 and row["floor_s"] > 0 for row in rows)
    beside = defaultdict[str, set[str]](set)
    for row in rows:
        beside[row["name"]] |= row["rivals"].keys()
    assert {name: beside[name] for name in RIVALS} == RIVALS
    assert {
        "transformers decode step",
        "transformers prefill",
        "short prefill",
        "short prefill without graphs",
        "hand-over 1P1D",
        "loading",
    } <= beside.keys()
    wrong = {row["name"]: row["error"] for row in rows if not (row["error"] or 0) < 0.02}
    assert wrong == {}


def test_steps_of_dense_models_run_as_well(tmp_path: Path) -> None:
    shapes = "tiny", "tiny-fp8"
    words = "decode step", "prefill:", "of a step", "loading", "of few rows", "over latents"
    asked = "--shapes", *shapes, "--only", *words
    rows = results(tmp_path / "results.json", *asked)
    named = {(row["shape"], row["name"]) for row in rows}
    steps = "decode step", "prefill", "transformers decode step", "transformers prefill"
    assert {(shape, step) for shape in shapes for step in steps} <= named
    assert {(shape, "decode step of single launches") for shape in shapes} <= named
    few = [row for row in rows if row["name"] == "product of few rows"]
    plain, eight = ([row for row in few if row["shape"] == shape] for shape in shapes)
    assert len(plain) == 2 * 4  # batches by products
    assert len(eight) == 2 * 4  # formats by products, for the batch that has few rows
    assert all(row["error"] < 0.02 for row in plain)
    # the interpreter cuts a norm's bfloat16 off, and some numbers are quantized to the next one
    assert all(row["error"] < 0.2 for row in eight)
    assert fmean(row["error"] for row in eight) < 0.04
    assert {*plain[0]["rivals"]} == {"cuBLAS, and the rest apart"}
    assert {*eight[0]["rivals"]} == {"in tiles, and the rest apart"}
    over_latents = [row for row in rows if row["name"].endswith("over latents")]
    assert len(over_latents) == 3
    assert all(row["error"] < 0.02 for row in over_latents)
    (products, _) = (row for row in rows if row["name"] == "products of a step")
    assert products["rivals"].keys() == {"torch._scaled_mm"}
    cold, warm = (row for row in rows if row["name"] == "loading")
    assert all(row["told"].count("GB/s") == 2 for row in (cold, warm))
    assert all(row["seconds"] > 0 and row["floor_s"] > 0 for row in (cold, warm))


def results(out: Path, *asked: str) -> list[dict[str, Any]]:
    """The rows of a run in which nothing failed."""
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--out", str(out)]
    run = subprocess.run(
        [*command, *asked],
        cwd=root,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows if row["failed"]] == []
    return rows
