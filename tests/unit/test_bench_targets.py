"""The table of targets behind the rows of the bench of a GPU."""

from dataclasses import replace

from bench.gpu.measuring import Measured
from bench.gpu.order import find_entries
from bench.gpu.shapes import LLAMA, OF_A_GPU, SHAPES
from bench.gpu.targets import TARGETS, verdicts

STEP = Measured("8b", "decode step", "batch 64, context 2048", 0.010, 0.0005, floor_s=0.008)


def lines(*rows: Measured) -> list[str]:
    return [" ".join(str(one).split()) for one in verdicts(rows)]


def test_a_step_says_its_share_of_the_floor_and_of_the_host() -> None:
    _, share, _, _, host = lines(STEP)
    assert share.endswith("at least 75.0% 80.0% reached")
    assert host.endswith("less than 10.0% 5.0% reached")
    _, share, _, _, host = lines(replace(STEP, seconds=0.011, host_s=0.0011))
    assert share.endswith("72.7% not reached")
    assert host.endswith("10.0% not reached")


def test_a_hand_over_is_told_in_milliseconds() -> None:
    setting = "2000 tokens, NIXL, checksums sampled"
    one = Measured("8b", "hand-over 1P1D", setting, 0.0049)
    assert lines(one)[3].endswith("less than 5 ms 4.9 ms reached")
    assert lines(replace(one, seconds=0.0051))[3].endswith("5.1 ms not reached")
    other = replace(one, setting="2000 tokens, NIXL, checksums off")
    assert lines(other) == []


def test_what_failed_was_not_measured() -> None:
    failed = Measured(STEP.shape, STEP.name, STEP.setting, failed="OutOfMemoryError")
    assert all(one.endswith("not measured") for one in lines(failed))
    assert len(lines(failed)) == 5
    assert lines(Measured("8b", "norm", "1 rows", 1.0)) == []


def test_every_target_has_its_row_in_the_shape_that_it_is_asked_of() -> None:
    rows = [entry.row for entry in find_entries([LLAMA], [])]
    for target in TARGETS:
        (_,) = [one for one in rows if one.name == target.row and target.words in one.setting]


def test_each_shape_has_a_table_of_its_own() -> None:
    steps = [replace(STEP, shape=name) for name in OF_A_GPU]
    assert [one.shape for one in verdicts(steps)][::5] == [SHAPES[n].name for n in OF_A_GPU]
