"""Folders of blocks on disk: one for each process and model, and nobody else's to look into."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from engine.errors import UnusableTier
from engine.tiers.slab import MOST_AT_ONE_PATH, Slab
from tests.unit.test_slab import SIZE, STRIDE, block, filled, key, opened, read


def open_below(folder: Path) -> list[str]:
    """The files there that this process has open."""
    found = list[str]()
    for handle in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # one that was closed meanwhile
            found.append(os.readlink(handle))
    return sorted(name for name in found if name.startswith(str(folder)))


def test_a_second_process_gets_files_of_its_own(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    first.write(key(1), 0, block(1))
    second.write(key(2), 0, block(2))
    assert first.folder != second.folder
    assert read(first, 1, 0)
    assert read(second, 2, 0)
    first.close()
    assert opened(tmp_path).folder == first.folder


def test_another_model_or_layout_has_another_folder(tmp_path: Path) -> None:
    filled(tmp_path)
    assert opened(tmp_path, name="other").known() == []


def test_no_more_processes_than_there_are_folders_and_a_refused_one_keeps_no_file(
    tmp_path: Path,
) -> None:
    slabs = [opened(tmp_path) for _ in range(MOST_AT_ONE_PATH)]
    files = open_below(tmp_path)
    with pytest.raises(UnusableTier, match=f"--kv-disk-path.*{MOST_AT_ONE_PATH} other"):
        opened(tmp_path)
    assert files
    assert open_below(tmp_path) == files
    slabs[5].close()
    slabs[5] = opened(tmp_path)
    assert len({slab.folder for slab in slabs}) == len(slabs)
    for slab in slabs:
        slab.close()


def test_nobody_else_may_look(tmp_path: Path) -> None:
    folder = filled(tmp_path / "made" / "with its parents")
    made = folder, folder.parent, tmp_path / "made" / "with its parents"
    assert {one.stat().st_mode & 0o777 for one in made} == {0o700}
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("which", ["model", "model/0"])
@pytest.mark.parametrize("mode", [0o740, 0o720, 0o710, 0o704, 0o702, 0o701])
def test_a_folder_that_others_may_enter_is_refused(
    tmp_path: Path, which: str, mode: int
) -> None:
    filled(tmp_path)
    (tmp_path / which).chmod(mode)
    with pytest.raises(UnusableTier, match=r"--kv-disk-path.*open to others"):
        opened(tmp_path)


def test_a_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    us = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: us + 1)
    with pytest.raises(UnusableTier, match="not a folder of our own"):
        opened(tmp_path)


def test_a_link_to_elsewhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnusableTier, match="not a folder of our own"):
        opened(tmp_path)


def test_a_path_that_is_none_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnusableTier, match="--kv-disk-path"):
        opened(tmp_path / "file")


def test_a_size_below_one_block_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnusableTier, match="--kv-disk-size"):
        Slab.open(tmp_path, "model", SIZE, STRIDE - 1)
    assert Slab.open(tmp_path, "model", SIZE, STRIDE).places == 1
