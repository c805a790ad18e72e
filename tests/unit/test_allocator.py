"""A program begins anew with an allocator once, if there is one and none was chosen."""

import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from deploy import allocator

ROOT = Path(__file__).parents[2]
ANEW = """
import os, sys
from deploy.allocator import PRELOAD, restart_with_preload
print(os.getpid(), os.environ.get(PRELOAD), *sys.argv[1:], flush=True)
restart_with_preload([sys.argv[1]])
"""


def installed(monkeypatch: pytest.MonkeyPatch, *files: Path) -> None:
    """TBB, made of these."""
    listed = [SimpleNamespace(name=file.name, locate=lambda file=file: file) for file in files]
    monkeypatch.setattr(allocator, "distribution", lambda name: SimpleNamespace(files=listed))


def libraries(folder: Path) -> Sequence[Path]:
    folder.mkdir()
    for name in allocator.LIBRARIES:
        (folder / name).touch()
    return [folder / name for name in allocator.LIBRARIES]


def test_it_is_found_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = libraries(tmp_path / "lib")
    installed(monkeypatch, *reversed(there), tmp_path / "libtbb.so.12")
    assert allocator.tbb_libraries() == [str(path) for path in there]


def test_what_is_not_whole_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = libraries(tmp_path / "lib")
    installed(monkeypatch, one)
    assert not allocator.tbb_libraries()
    other.unlink()
    installed(monkeypatch, one, other)
    assert not allocator.tbb_libraries()


@pytest.mark.parametrize("name", ["a folder", "a:folder"])
def test_a_path_that_a_linker_would_part_is_left_alone(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, *libraries(tmp_path / name))
    assert not allocator.tbb_libraries()


def test_without_it_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(allocator, "distribution", missing)
    assert not allocator.tbb_libraries()


def test_a_program_begins_anew_once_as_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(allocator.PRELOAD, raising=False)
    library, words = "libm.so.6", ["two words", "--flag=1"]
    command = [sys.executable, "-c", ANEW, library, *words]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    said = " ".join([library, *words])
    pid = ran.stdout.split()[0]
    assert ran.stdout == f"{pid} None {said}\n{pid} {library} {said}\n"
    assert not ran.stderr


@pytest.mark.parametrize("chosen", ["libjemalloc.so.2", ""])
def test_who_has_preloaded_anything_has_chosen(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(allocator.PRELOAD, chosen)
    monkeypatch.setattr("os.execve", lambda *all_of_it: pytest.fail("it began anew"))
    allocator.restart_with_preload(["library"])
    monkeypatch.delenv(allocator.PRELOAD)
    allocator.restart_with_preload([])
