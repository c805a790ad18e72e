"""The model of a hand-over finds the bugs that it is there for.

Each patch in tests/planted/ is applied to a copy of the packages; the user's files are not
touched. One that does not apply any more fails: the code has moved, the patch has to follow.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted.search import FOUND

ROOT = Path(__file__).parents[2]
PLANTED = ROOT / "tests" / "planted"
PATCHES = sorted(PLANTED.glob("*.patch"))
PROMISED = 13  # what the hand-over was asked to find, loans, checksums and unequal sides
LONGEST_S = 900  # a machine that is busy with all else; each takes some seconds


def copy_of_packages(into: Path, patch: Path) -> None:
    """The packages that the patch changes, and links to the others."""
    changed = {
        line.split("/")[1] for line in patch.read_text().splitlines() if line[:4] == "+++ "
    }
    for package in ROOT.iterdir():
        if package.name in changed:
            shutil.copytree(
                package, into / package.name, ignore=shutil.ignore_patterns("__pycache__")
            )
        elif (package / "__init__.py").exists():
            (into / package.name).symlink_to(package)


def git_apply(patch: Path, where: Path, *more: str) -> None:
    """Apply it in a folder that belongs to no repository."""
    ceiling = {**os.environ, "GIT_CEILING_DIRECTORIES": str(where.parent)}
    done = subprocess.run(
        ["git", "apply", *more, str(patch)],
        cwd=where, env=ceiling, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{patch.name} does not apply any more: {done.stderr}"


def test_each_bug_of_the_list_is_planted() -> None:
    assert len(PATCHES) == PROMISED


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_it_is_found(patch: Path, tmp_path: Path) -> None:
    copy_of_packages(tmp_path, patch)
    git_apply(patch, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "tests.planted.search"],
        cwd=tmp_path, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=LONGEST_S, check=False,
    )  # fmt: skip
    assert done.returncode == FOUND, f"{patch.stem} was not found: {done.stdout}{done.stderr}"
