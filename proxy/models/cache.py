"""A disk cache of text files by digest, so that a restarted proxy need not fetch them."""

import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from api.text_files import LARGEST, digest_of

MOST_PARCELS = 32
SUFFIX, UNFINISHED = ".parcel", ".unfinished"
ABANDONED_S = 3600
"""After so long nobody is writing to an unfinished file any more: its writer was killed."""
XDG = "XDG_CACHE_HOME"
logger = logging.getLogger(__name__)


def default_folder() -> Path:
    """The user's cache folder, by the XDG base directory specification."""
    base = os.environ.get(XDG, "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "pdserve" / "text"


@dataclass(slots=True)
class ParcelCache:
    """One file for each parcel, written whole or not at all; several processes may share it.

    A file that cannot be read or does not match its digest counts as missing. After the first
    write error the cache is switched off, with one line in the log.
    """

    folder: Path
    most: int = MOST_PARCELS
    works: bool = True

    def find(self, digest: str) -> bytes | None:
        """The parcel, if it is here and whole."""
        path = self.folder / (digest + SUFFIX)
        try:
            if path.stat().st_size > LARGEST:
                return None
            data = path.read_bytes()
            path.touch()  # the latest use decides what stays
        except OSError:
            return None
        return data if digest_of(data) == digest else None

    def keep(self, digest: str, data: bytes) -> None:
        """Write it to a temporary file, then move it to its place."""
        if not self.works:
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                dir=self.folder, suffix=UNFINISHED, delete=False
            ) as file:
                try:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    Path(file.name).replace(self.folder / (digest + SUFFIX))
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
            self._forget_oldest()
        except OSError as error:
            self.works = False
            logger.warning("text files are not kept in %s: %s", self.folder, error)

    def _forget_oldest(self) -> None:
        aged = sorted(self._ages(SUFFIX), reverse=True)
        latest = time.time() - ABANDONED_S
        abandoned = [file for file in self._ages(UNFINISHED) if file[0] < latest]
        for _, path in (*aged[self.most :], *abandoned):
            path.unlink(missing_ok=True)

    def _ages(self, suffix: str) -> Iterator[tuple[float, Path]]:
        for path in self.folder.glob(f"*{suffix}"):
            with suppress(FileNotFoundError):
                yield path.stat().st_mtime, path
