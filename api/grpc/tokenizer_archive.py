"""A model's text files as a zip archive, for a router that does not have them."""

import asyncio
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from api.text_files import TOKENIZER, TextParcel, unpack


class NoTokenizer(Exception):
    """There is none to give."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A zip archive, and its SHA-256 in hexadecimal digits."""

    data: bytes
    digest: str


@dataclass(slots=True)
class TokenizerArchive:
    """Made when it is first asked for, of a parcel that has a tokenizer."""

    parcel: TextParcel | None
    _made: "asyncio.Task[Archive] | None" = None

    async def get(self) -> Archive:
        """The archive; raises NoTokenizer."""
        if self.parcel is None:
            raise NoTokenizer("this node has no tokenizer to give")
        if self._made is None:
            self._made = asyncio.create_task(asyncio.to_thread(_packed, self.parcel))
        return await asyncio.shield(self._made)


def _packed(parcel: TextParcel) -> Archive:
    files = unpack(parcel.data, parcel.digest)
    if TOKENIZER not in files:
        raise NoTokenizer("this node has no tokenizer to give")
    data = _zipped(files)
    return Archive(data, sha256(data).hexdigest())


def _zipped(files: Mapping[str, bytes]) -> bytes:
    """Equal files make equal archives."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return whole.getvalue()
