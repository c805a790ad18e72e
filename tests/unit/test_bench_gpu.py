"""What the bench of a GPU makes of its rows, with rows that are made up."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch

from bench.gpu import report
from bench.gpu.__main__ import NO_DEVICE, main
from bench.gpu.ceilings import Ceilings
from bench.gpu.measuring import Measured, Meter, difference
from bench.gpu.order import find_entries
from bench.gpu.profiling import Kernels, kernels_of
from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import LLAMA, SHAPES, TINY
from bench.gpu.timing import StepTimes
from bench.gpu.work import layer_weights, prompt_floor, step_floor
from engine.kernels.floor import Floor

CEILINGS = Ceilings(bandwidth=1e9, bfloat16=1e12, float8=2e12)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Stepping:
    """A timer to which everything takes two seconds; `blind`: it has no profiler."""

    blind: bool = False

    def seconds(self, run: Callable[[], object]) -> float:
        run()
        return 2.0

    def host_seconds(self, run: Callable[[], object]) -> float:
        return 0.5

    def clock_seconds(self, run: Callable[[], object]) -> float:
        run()
        return 3.0

    def step_times(self, run: Callable[[], object]) -> StepTimes:
        run()
        return StepTimes(3.0, 3.5, 2.75)

    def kernels(self, run: Callable[[], object]) -> Kernels:
        if self.blind:
            raise RuntimeError("no right to look")
        return {"products": (4.0, 1.5), "norms": (6.0, 0.25)}


def _meter() -> Meter:
    return Meter(CPU, Stepping(), CEILINGS)


def _row(prepared: Prepared) -> Row:
    return Row("kernel", "batch 1", lambda _device: prepared)


def test_the_floor_is_the_longer_of_bytes_and_operations() -> None:
    assert CEILINGS.seconds(Floor(10**9, 10)) == 1
    assert CEILINGS.seconds(Floor(10, 3 * 10**12)) == 3
    assert CEILINGS.seconds(Floor(10, 3 * 10**12, "float8")) == 1.5


def test_without_float8_its_ceiling_is_that_of_bfloat16() -> None:
    plain = Ceilings(1e9, 1e12)
    assert plain.seconds(Floor(10, 10**12, "float8")) == 1


def test_a_share_says_how_near_to_the_floor_it_is() -> None:
    one = _meter().measure(TINY, _row(Prepared(lambda: None, Floor(10**9))))
    assert (one.seconds, one.floor_s, one.share, one.host_s) == (2.0, 1.0, 0.5, 0.5)


def test_a_row_has_the_same_inputs_in_every_run() -> None:
    def drawn(device: torch.device) -> Prepared:
        made, twin = torch.randn(2, 3, device=device)
        return Prepared(lambda: made, Floor(1), lambda: twin)

    once, again = (_meter().measure(TINY, Row("kernel", "", drawn)) for _ in range(2))
    other = _meter().measure(TINY, Row("kernel", "batch 1", drawn))
    assert once.error == again.error != other.error


def test_a_row_that_fails_is_told_by_name_and_so_is_a_rival() -> None:
    def broken() -> None:
        raise RuntimeError("no such\ninstruction")

    failed = _meter().measure(TINY, _row(Prepared(broken, Floor(1))))
    assert failed.failed == "RuntimeError: no such instruction"
    beside = Prepared(lambda: None, Floor(1), rivals={"torch": lambda: broken})
    one = _meter().measure(TINY, _row(beside))
    assert one.failed is None
    assert one.rivals == {"torch": "RuntimeError: no such instruction"}
    assert "kernel: batch 1" in report.line(failed)


def test_of_a_row_that_waits_for_others_the_clock_counts() -> None:
    one = _meter().measure(TINY, _row(Prepared(lambda: None, Floor(1), waits=True)))
    assert (one.seconds, one.host_s, one.clock_s) == (3.0, None, None)


def test_of_a_step_the_host_has_what_the_device_does_not_work() -> None:
    one = _meter().measure(TINY, _row(Prepared(lambda: None, Floor(10**9), steps=True)))
    assert (one.seconds, one.clock_s, one.busy_s, one.host_s) == (3.0, 3.5, 2.75, 0.25)
    assert one.share == 1 / 3
    assert "3500000.0" in report.line(one)


def test_a_step_is_told_with_the_kernels_it_is_made_of() -> None:
    step = _row(Prepared(lambda: None, Floor(10**9), steps=True))
    one = _meter().measure(TINY, step)
    assert one.kernels == {"products": (4.0, 1.5), "norms": (6.0, 0.25)}
    _, total, first, second = report.line(one).splitlines()
    assert total.split() == [
        "10",
        "kernels",
        "work",
        "1750000.0,",
        "1000000.0",
        "between",
        "them",
    ]
    assert first.split() == ["1500000.0", "4", "x", "products"]
    assert second.split() == ["250000.0", "6", "x", "norms"]


def test_a_device_without_a_profiler_has_the_times_of_steps() -> None:
    step = _row(Prepared(lambda: None, Floor(10**9), steps=True))
    one = Meter(CPU, Stepping(blind=True), CEILINGS).measure(TINY, step)
    assert (one.seconds, one.kernels, one.failed) == (3.0, {}, None)
    assert one.told == "no profile (RuntimeError: no right to look)"
    assert len(report.line(one).splitlines()) == 1


def test_kernels_are_counted_by_call_and_the_longest_comes_first() -> None:
    small, large = torch.zeros(4, 4), torch.zeros(600, 600)

    def run() -> None:
        torch.mm(large, large)
        torch.add(small, 1)
        torch.add(small, 1)

    found = kernels_of(run, CPU)
    assert next(iter(found)) == "aten::mm"
    assert (found["aten::mm"][0], found["aten::add"][0]) == (1, 2)
    assert 0 < found["aten::add"][1] < found["aten::mm"][1] < 1


def test_a_row_may_measure_itself() -> None:
    one = _meter().measure(TINY, _row(Prepared(lambda: 7.0, Floor(1), measures=True)))
    assert (one.seconds, one.host_s) == (7.0, None)


@pytest.mark.parametrize("fails", [False, True])
def test_what_a_row_has_taken_it_gives_back(fails: bool) -> None:
    closed = list[str]()

    def run() -> None:
        if fails:
            raise RuntimeError

    prepared = Prepared(run, Floor(1), close=lambda: closed.append("closed"))
    assert bool(_meter().measure(TINY, _row(prepared)).failed) is fails
    assert closed == ["closed"]


def test_a_decode_step_reads_every_weight_and_all_kv() -> None:
    weights = 2 * (8.03e9 - LLAMA.vocab_size * LLAMA.hidden_size)  # but the embedding
    assert step_floor(LLAMA, 1).bytes == pytest.approx(weights + 2048 * (128 << 10), rel=1e-3)
    more = step_floor(LLAMA, 64).bytes - step_floor(LLAMA, 1).bytes
    assert more == 63 * 2048 * (128 << 10)
    eight = step_floor(SHAPES["8b-fp8"], 1)
    assert eight.unit == "float8"
    assert eight.bytes == pytest.approx(weights / 2 + 2048 * (128 << 10), rel=1e-3)


def test_of_experts_only_those_are_read_that_a_token_may_be_sent_to() -> None:
    shape = SHAPES["30b-a3b"]
    active, most = layer_weights(shape, 1), layer_weights(shape, 8192)
    assert active / 1e9 == pytest.approx(2.72, abs=0.05)  # of 3.3 with both ends
    assert most / 1e9 == pytest.approx(29.9, abs=0.2)
    assert active < layer_weights(shape, 8) < most
    assert prompt_floor(shape, 8192).operations < 2 * 8192 * most


def test_a_prompts_floor_is_its_operations() -> None:
    """Each token attends to half of them on average."""
    layers = 2 * layer_weights(LLAMA, 1) * 8192
    attention = 32 * 32 * 128 * 2 * 8192 * 8192
    head = 2 * LLAMA.hidden_size * LLAMA.vocab_size
    assert prompt_floor(LLAMA, 8192).operations == layers + attention + head


def test_a_wrong_result_is_seen_beside_its_twin() -> None:
    ours = torch.tensor([3.0, 4.0])
    assert difference(ours, [ours, None]) == 0
    assert difference(ours * 1.1, ours) == pytest.approx(0.1)
    assert math.isnan(difference(ours * math.nan, ours))


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ("8b", {"decode step", "prefill", "hand-over 1P1D", "product", "int4 product"}),
        ("8b", {"transformers decode step", "transformers prefill"}),
        ("8b", {"norm", "norm with a residual", "gate", "sampling", "penalties", "masks"}),
        ("8b", {"decode attention", "prefill attention", "turns and writes"}),
        ("8b", {"pieces of blocks", "checksums of blocks", "log-probabilities"}),
        ("8b-fp8", {"decode step", "prefill", "fp8 product", "fp8 in blocks product"}),
        ("8b-fp8", {"rows to fp8", "rows to fp8 in blocks", "norm to fp8", "gate to fp8"}),
        ("30b-a3b", {"decode step", "prefill", "grouped product", "hand-over 1P1D"}),
    ],
)
def test_every_kernel_and_step_has_its_rows(shape: str, names: set[str]) -> None:
    entries = find_entries([SHAPES[shape]], [])
    assert names <= {entry.row.name for entry in entries}


def test_results_have_everything_that_a_reader_must_know(tmp_path: Path) -> None:
    file, one = tmp_path / "new" / "results.json", Measured("tiny", "kernel", "batch 1", 2.0)
    said = report.asked() | report.facts(CPU) | {"ceilings": asdict(CEILINGS)}
    report.write(file, said, [one])
    assert [one.name for one in file.parent.iterdir()] == [file.name]
    said = json.loads(file.read_text())
    assert {"device", "driver", "torch", "triton", "command", "date", "commit"} <= said.keys()
    assert said["ceilings"]["bandwidth"] == 1e9
    assert said["rows"][0] | {"rivals": {}} == said["rows"][0]
    assert said["rows"][0]["seconds"] == 2.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == NO_DEVICE
    assert "no CUDA device" in capsys.readouterr().out


def test_shapes_are_the_published_models() -> None:
    weights = 2 * LLAMA.vocab_size * LLAMA.hidden_size + LLAMA.num_hidden_layers * (
        LLAMA.hidden_size * (2 * 4096 + 2 * 1024) + 3 * LLAMA.hidden_size * 14336
    )
    assert round(weights / 1e9, 2) == 8.03
    assert LLAMA.kv_bytes == 128 << 10
    assert (LLAMA.batches, LLAMA.context, LLAMA.prefill) == ((1, 8, 64), 2048, 8192)
    assert LLAMA.handed_over == 2000
    assert SHAPES["30b-a3b"].config["num_experts"] == 128
