"""A node that shares cores with others says so, unless it was told how many are its own."""

import os
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

import pytest

from engine.settings import EngineConfig
from node.core_sharing import ENGINE, engines_sharing_cores, threads_advice
from node.engine_client import ENGINE_PROCESS

ALONE = EngineConfig(model="m")


def test_it_looks_for_what_a_door_starts() -> None:
    assert ENGINE.decode() == ENGINE_PROCESS


def test_engines_on_our_cores_are_counted_and_nobody_else(tmp_path: Path) -> None:
    engine = "python\0-m\0node.engine_process\0"
    commands = {
        os.getpid(): engine,
        2: engine,
        3: engine,
        4: engine,
        5: "grep\0node.engine_process\0",
        6: "python\0-m\0node.rank_process\0",
        7: engine,
    }
    for process, command in commands.items():
        (tmp_path / str(process)).mkdir()
        (tmp_path / str(process) / "cmdline").write_text(command)
    (tmp_path / "8").mkdir()  # it has just ended

    def cores_of(process: int) -> Set[int]:
        if process == 7:
            raise ProcessLookupError
        return {0: {0, 1}, 2: {1, 2}, 3: {0}, 4: {2, 3}}.get(process, {0})

    assert engines_sharing_cores(tmp_path, cores_of) == 2


@pytest.mark.parametrize(
    ("beside", "config", "said"),
    [
        (0, ALONE, None),
        (1, replace(ALONE, threads=2), None),
        (1, replace(ALONE, device="cuda:0"), None),
        (1, ALONE, "--threads 4"),
        (2, ALONE, "--threads 2"),
        (20, ALONE, "--threads 1"),
    ],
)
def test_its_part_is_what_there_is_for_each(
    beside: int, config: EngineConfig, said: str | None
) -> None:
    told = threads_advice(config, beside, cores=8)
    assert (told is None) is (said is None)
    assert told is None or told.endswith(said or "")
