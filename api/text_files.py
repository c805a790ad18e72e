"""Tokenizer and config files of a model in one parcel, which a node sends to a proxy on
request.

A parcel is a msgpack map of names to bytes, sorted by name, and is identified by its SHA-256.
It only ever has files that are named here: no weights, and no code.

TextFilesError
├── BadParcel        the bytes do not match the digest, or have a file that is not allowed
└── ParcelTooLarge   more bytes than are sent or accepted
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgpack
import msgspec

from api.defaults import AUTO, NONE
from api.defaults import FILE as GENERATION
from api.hub import text_file
from api.pooling.model_config import CONFIG
from api.text.tokenizing import TextCodec
from api.wire import UNREADABLE
from engine.pooling.reading import MODULES

ROUTE = "/model/text_files"
LARGEST = 64 << 20  # twice the largest tokenizer.json that is in use
TOKENIZER = "tokenizer.json"
OF_TOKENIZER = (
    *(TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json"),
)
OF_MODEL = CONFIG, MODULES
NAMES = frozenset((*OF_TOKENIZER, *OF_MODEL, GENERATION))
LAYER = re.compile(r"\w[\w.-]{0,63}/config\.json")
"""The config of a layer on top of the model, in a folder that `modules.json` names."""


class TextFilesError(Exception):
    """Base of the errors of this file."""


class BadParcel(TextFilesError):
    """The bytes do not match the digest, or hold other files than text files."""


class ParcelTooLarge(TextFilesError):
    """More bytes than any model's text files need."""


@dataclass(frozen=True, slots=True)
class TextParcel:
    """The packed files, and their SHA-256."""

    data: bytes
    digest: str


def pack(files: Mapping[str, bytes]) -> TextParcel:
    """Pack the files; equal files make equal parcels. Raises ParcelTooLarge."""
    data = bytes(msgpack.packb({name: files[name] for name in sorted(files)}))
    if len(data) > LARGEST:
        raise ParcelTooLarge(f"{len(data)} bytes of text files are more than {LARGEST}")
    return TextParcel(data, digest_of(data))


def unpack(data: bytes, digest: str) -> dict[str, bytes]:
    """The files of an untrusted parcel; raises BadParcel, ParcelTooLarge."""
    if len(data) > LARGEST:
        raise ParcelTooLarge(f"{len(data)} bytes of text files are more than {LARGEST}")
    if (found := digest_of(data)) != digest:
        raise BadParcel(f"its digest is {found}, not {digest}")
    try:
        files = msgspec.msgpack.decode(data, type=dict[str, bytes])
    except UNREADABLE as error:
        raise BadParcel(f"it cannot be read: {error}") from error
    for name in files:
        if not _allowed(name):
            raise BadParcel(f"{name!r} is no text file")
    return files


def digest_of(data: bytes) -> str:
    """The SHA-256 of the data, as 64 hexadecimal digits."""
    return sha256(data).hexdigest()


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write the `files` of an `unpack` as a checkpoint has them, without its weights."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def gather(model: str, tokenizer: str, generation_config: str, codec: TextCodec) -> TextParcel:
    """Collect the files from which a node makes its own text; its settings say where they are.

    If the tokenizer is not a `tokenizer.json`, the `codec` made of it writes one. Raises
    ParcelTooLarge, BadParcel if the codec cannot write it, and OSError.
    """
    files = dict(_read(tokenizer, OF_TOKENIZER)) | dict(_read(model, OF_MODEL))
    if generation_config != NONE:
        where = model if generation_config == AUTO else generation_config
        files |= dict(_read(where, (GENERATION,)))
    files |= dict(_read(model, _layers(files.get(MODULES))))
    if TOKENIZER not in files:
        if codec.fast is None:
            raise BadParcel("the tokenizer is none that could be written down")
        files[TOKENIZER] = str(codec.fast.to_str()).encode()
    return pack(files)


def _read(model: str, names: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        if (path := text_file(model, name)) is not None:
            if path.stat().st_size > LARGEST:
                raise ParcelTooLarge(f"{path} is larger than {LARGEST} bytes")
            yield name, path.read_bytes()


def _layers(modules: bytes | None) -> tuple[str, ...]:
    """The configs that `modules.json` names; none if it makes no sense."""
    try:
        said = msgspec.json.decode(modules or b"[]", type=list[dict[str, object]])
    except UNREADABLE:
        return ()
    names = (f"{one.get('path')}/{CONFIG}" for one in said)
    return tuple(name for name in names if LAYER.fullmatch(name))


def _allowed(name: str) -> bool:
    return name in NAMES or LAYER.fullmatch(name) is not None
