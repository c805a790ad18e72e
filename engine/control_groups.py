"""Our control groups and their ancestors: where a container's limits stand.

Version 2 has one tree for everything; version 1 has a tree for each kind of limit.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def unified_groups(root: Path) -> Iterator[Path]:
    """The folders of our group and its ancestors, version 2; some may not exist.

    `root` is the folder that contains `proc` and `sys`.
    """
    for kinds, path in _entries(root):
        if kinds == "":
            yield from _upwards(root / "sys/fs/cgroup", path)


def groups_of_kind(root: Path, kind: str) -> Iterator[Path]:
    """The same of version 1, in the tree of one kind of limit, such as `memory`."""
    for kinds, path in _entries(root):
        if kind in kinds.split(","):
            yield from _upwards(root / "sys/fs/cgroup" / kind, path)


def number_in(file: Path) -> int | None:
    """The number in a file; None if it has none, such as `max`."""
    with suppress(OSError, ValueError):
        return int(file.read_text())
    return None


def number_named(file: Path, name: str) -> int | None:
    """The number that follows `name` in a file."""
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.split()[:1] == [name]:
                return int(line.split()[1])
    return None


def _entries(root: Path) -> Iterator[tuple[str, str]]:
    """The kinds of limits and the group's path, for each tree."""
    said = ""
    with suppress(OSError):
        said = (root / "proc/self/cgroup").read_text()
    for entry in said.splitlines():
        _, kinds, path = entry.split(":", 2)
        yield kinds, path


def _upwards(mounted: Path, path: str) -> Iterator[Path]:
    """A group and its ancestors; a container may see its own group as the root."""
    inner = PurePosixPath("/", path)
    return (mounted / group.relative_to("/") for group in (inner, *inner.parents))
