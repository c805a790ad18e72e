"""The bench of a GPU, whole, through Triton's interpreter: that it runs, not how fast."""

import json
import os
import subprocess
import sys
from pathlib import Path

root = Path(__file__).parents[2]


def test_the_whole_bench_runs_on_a_cpu(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--out", str(out)]
    run = subprocess.run(
        [*command, "--shapes", "tiny", "tiny-experts"],
        cwd=root,
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {row["shape"] for row in rows} == {"tiny", "tiny-experts"}
    assert [row["name"] for row in rows if row["failed"]] == []
    assert all(row["seconds"] > 0 and row["floor_s"] > 0 for row in rows)
    wrong = {row["name"]: row["error"] for row in rows if not (row["error"] or 0) < 0.02}
    assert wrong == {}
