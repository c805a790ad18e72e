"""Rows of the bench of a GPU are measured by processes that may break without the others."""

import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bench.gpu.lanes import NoCeilings, RowProcesses
from bench.gpu.measuring import Measured
from bench.gpu.order import ALONE, ORDER, RowEntry, find_entries, lane_end
from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import OF_A_GPU, SHAPES, TINY
from engine.kernels.floor import Floor

LONG_S = 60.0


def entry(name: str, module: str = "made_up", shape: str = "tiny") -> RowEntry:
    return RowEntry(SHAPES[shape], module, Row(name, "", _prepared))


def _prepared(_: torch.device) -> Prepared:
    return Prepared(lambda: None, Floor(1))


def lanes(log: Path, deeds: str, *, row_s: float = LONG_S, **job: object) -> RowProcesses:
    """One row for each deed."""
    words = deeds.split()
    entries = [entry(f"row {index}") for index in range(len(words))]
    told: dict[str, Any] = {"device": "cpu", "deeds": words, "log": str(log), **job}
    ends_at = time.monotonic() + LONG_S
    return RowProcesses(entries, told, ends_at, row_s, module="tests.fakes.bench_child")


def found(ours: RowProcesses) -> list[str | None]:
    results = list(ours.results())
    assert [one.name for one in results] == [f"row {index}" for index in range(len(results))]
    return [one.failed for one in results]


def test_one_process_measures_all_where_nothing_breaks(tmp_path: Path) -> None:
    ours = lanes(tmp_path / "log", "fine fine fine")
    assert found(ours) == [None, None, None]
    assert (tmp_path / "log").read_text() == "0-3\n"
    assert ours.facts == {"device": "made up"}
    assert ours.ceilings is not None
    assert ours.ceilings["bandwidth"] == 1e9


def test_a_row_that_ends_its_process_costs_no_other_row(tmp_path: Path) -> None:
    failed = found(lanes(tmp_path / "log", "fine aborts fine aborts"))
    assert failed == [None, *["its process ended by SIGABRT", None] * 2][:4]
    assert (tmp_path / "log").read_text() == "0-4\n2-4\n"


def test_behind_a_row_that_lost_the_device_a_new_process_goes_on(tmp_path: Path) -> None:
    assert found(lanes(tmp_path / "log", "loses fine")) == [None, None]
    assert (tmp_path / "log").read_text() == "0-2\n1-2\n"


def test_a_row_that_never_answers_is_ended(tmp_path: Path) -> None:
    failed = found(lanes(tmp_path / "log", "fine hangs fine", row_s=0.5))
    assert failed == [None, "no answer within 0 s", None]


def test_when_the_time_is_up_all_that_is_left_is_told_by_name(tmp_path: Path) -> None:
    ours = lanes(tmp_path / "log", "fine hangs fine")
    results = ours.results()
    assert next(results).failed is None
    ours.ends_at = time.monotonic() + 0.2
    assert [one.failed for one in results] == ["no time left", "no time left"]
    assert (tmp_path / "log").read_text() == "0-3\n"


def test_without_ceilings_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(NoCeilings):
        list(lanes(tmp_path / "log", "fine fine", mute=True).results())
    assert (tmp_path / "log").read_text() == "0-2\n" * 2


def test_a_module_that_cannot_be_imported_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made_up_rows"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "absent.py").write_text("import no_such_thing\n")
    (folder / "there.py").write_text(
        "from bench.gpu.row import Row\n"
        "def rows(shape):\n"
        "    yield Row('there', shape.name, None)\n"
        "    yield Row('elsewhere', shape.name, None)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    package = ModuleType("made_up_rows")
    package.__path__ = [str(folder)]
    lost, *others = find_entries([TINY], ["there: "], package)
    assert isinstance(lost.row, Measured)
    assert lost.row.name == "absent"
    assert "no_such_thing" in str(lost.row.failed)
    assert [str(one.row) for one in others] == ["there: tiny"]


def test_what_is_asked_for_most_comes_first_of_all_shapes() -> None:
    entries = find_entries([SHAPES[name] for name in OF_A_GPU], [])
    assert {one.module for one in entries} == set(ORDER)
    first = [(one.shape.name, one.row.name, one.row.setting) for one in entries[:3]]
    assert first == [
        ("8b", "decode step", "batch 1, context 2048"),
        ("8b", "decode step", "batch 64, context 2048"),
        ("8b", "decode step", "batch 8, context 2048"),
    ]
    places = [ORDER.index(one.module) for one in entries]
    assert places == sorted(places)


def test_a_model_that_fills_the_device_has_a_process_of_its_own() -> None:
    whole = "steps", "overlapped_steps", "brought_steps", "apart_steps", "adapted_steps"
    assert {*whole, "their_steps"} == ALONE
    modules = ("steps", "8b"), ("steps", "30b-a3b"), ("attention", "8b"), ("products", "8b")
    ours = [entry("one", module, shape) for module, shape in modules for _ in range(2)]
    assert lane_end(ours, 0, one_process=False) == 2
    assert lane_end(ours, 1, one_process=False) == 2
    assert lane_end(ours, 2, one_process=False) == 4
    assert lane_end(ours, 4, one_process=False) == 8
    assert lane_end(ours, 0, one_process=True) == 8
