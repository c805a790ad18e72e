"""Parcels of text files: what a node gives, what a proxy takes, and what neither does."""

import os
from pathlib import Path

import msgpack
import pytest

from api.text_files import (
    LARGEST,
    BadParcel,
    ParcelTooLarge,
    digest_of,
    gather,
    pack,
    unpack,
    write_files,
)
from proxy.models.cache import UNFINISHED, ParcelCache
from proxy.models.text_store import read_text
from tests.fakes.text import TEXT, byte_level, checkpoint_of

FILES = {"tokenizer.json": b"{}", "config.json": b"{}"}


def test_a_parcel_comes_back_as_it_was_whatever_the_order() -> None:
    parcel = pack(FILES)
    assert unpack(parcel.data, parcel.digest) == FILES
    assert pack(dict(reversed(FILES.items()))) == parcel


def test_what_is_not_of_its_digest_is_refused() -> None:
    parcel = pack(FILES)
    with pytest.raises(BadParcel, match="its digest is"):
        unpack(parcel.data + b"x", parcel.digest)


@pytest.mark.parametrize(
    "name",
    [
        *("model.safetensors", "modeling.py", "../config.json", "/config.json"),
        *(".hidden/config.json", "a/b/config.json", "..\\config.json", "1_Pooling/x.json", ""),
    ],
)
def test_what_is_no_text_file_is_refused(name: str) -> None:
    data = bytes(msgpack.packb({**FILES, name: b""}))
    with pytest.raises(BadParcel, match="no text file"):
        unpack(data, digest_of(data))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa1x\xa1y", b"\x93\x01\x02\x03"])
def test_noise_is_refused(data: bytes) -> None:
    with pytest.raises(BadParcel):
        unpack(data, digest_of(data))


def test_a_tokenizer_of_100_mb_is_refused_on_both_sides(tmp_path: Path) -> None:
    folder = checkpoint_of(byte_level(), tmp_path / "m")
    with (folder / "tokenizer.json").open("ab") as file:
        file.truncate(100_000_000)
    with pytest.raises(ParcelTooLarge):
        gather(str(folder), str(folder), "auto", byte_level())
    data = bytes(LARGEST + 1)
    with pytest.raises(ParcelTooLarge):
        unpack(data, digest_of(data))


def test_a_node_gives_no_weights(tmp_path: Path) -> None:
    folder = checkpoint_of(byte_level(), tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"secret")
    (folder / "modules.json").write_text('[{"path": "1_Pooling"}, {"path": "../up"}, {}]')
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    parcel = gather(str(folder), str(folder), "auto", byte_level())
    files = unpack(parcel.data, parcel.digest)
    assert b"secret" not in parcel.data
    assert {"tokenizer.json", "config.json", "1_Pooling/config.json"} <= set(files)


def test_what_is_made_of_a_parcel_speaks_as_the_node_does(tmp_path: Path) -> None:
    folder = checkpoint_of(byte_level(), tmp_path / "m")
    (folder / "generation_config.json").write_text('{"temperature": 0.25}')
    parcel = gather(str(folder), str(folder), "auto", byte_level())
    text = read_text(parcel.digest, parcel.data, "auto")
    assert text.codec.encode(TEXT) == byte_level().encode(TEXT)
    chat = [{"role": "user", "content": "hi"}]
    assert text.codec.render(chat, {}) == byte_level().render(chat, {})
    assert text.defaults.temperature == 0.25
    assert read_text(parcel.digest, parcel.data, "vllm").defaults.temperature == 1.0
    without = gather(str(folder), str(folder), "vllm", byte_level())
    assert read_text(without.digest, without.data, "auto").defaults.temperature == 1.0


def test_a_tokenizer_without_its_json_is_written_down(tmp_path: Path) -> None:
    folder = checkpoint_of(byte_level(), tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    parcel = gather(str(folder), str(folder), "auto", byte_level())
    assert read_text(parcel.digest, parcel.data, "auto").codec.encode(TEXT)


@pytest.mark.parametrize("files", [{"config.json": b"{}"}, {"tokenizer.json": b"{"}, FILES])
def test_what_makes_no_tokenizer_is_refused(files: dict[str, bytes]) -> None:
    parcel = pack(files)
    with pytest.raises(BadParcel):
        read_text(parcel.digest, parcel.data, "auto")


def test_files_are_written_where_a_checkpoint_has_them(tmp_path: Path) -> None:
    write_files({"1_Pooling/config.json": b"{}", **FILES}, tmp_path)
    assert (tmp_path / "1_Pooling" / "config.json").read_bytes() == b"{}"


def test_the_cache_gives_back_what_it_was_given(tmp_path: Path) -> None:
    cache, parcel = ParcelCache(tmp_path / "deep" / "text"), pack(FILES)
    assert cache.find(parcel.digest) is None
    cache.keep(parcel.digest, parcel.data)
    assert ParcelCache(cache.folder).find(parcel.digest) == parcel.data
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert len(list(cache.folder.iterdir())) == 1


def test_what_a_crash_tore_or_somebody_changed_is_a_miss(tmp_path: Path) -> None:
    cache, parcel = ParcelCache(tmp_path), pack(FILES)
    cache.keep(parcel.digest, parcel.data)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(parcel.data[:-1])
    assert cache.find(parcel.digest) is None
    cache.keep(parcel.digest, parcel.data)
    assert cache.find(parcel.digest) == parcel.data


def test_the_cache_forgets_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = ParcelCache(tmp_path, most=2)
    parcels = [pack({"config.json": bytes([number])}) for number in range(3)]
    for age, parcel in enumerate(parcels):
        cache.keep(parcel.digest, parcel.data)
        for file in tmp_path.glob(f"{parcel.digest}*"):
            os.utime(file, (1e9 + age, 1e9 + age))
    found = [cache.find(parcel.digest) is not None for parcel in parcels]
    assert found == [False, True, True]


def test_what_a_killed_process_left_unfinished_is_removed_later(tmp_path: Path) -> None:
    """It may also be another process's, which is still writing."""
    cache, parcel = ParcelCache(tmp_path), pack(FILES)
    left, young = (tmp_path / f"{name}{UNFINISHED}" for name in ("left", "young"))
    for file in (left, young):
        file.touch()
    os.utime(left, (1e9, 1e9))
    cache.keep(parcel.digest, parcel.data)
    assert not left.exists()
    assert young.exists()


def test_a_cache_that_cannot_be_written_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    cache, parcel = ParcelCache(tmp_path / "file" / "text"), pack(FILES)
    cache.keep(parcel.digest, parcel.data)
    cache.keep(parcel.digest, parcel.data)
    assert cache.find(parcel.digest) is None
    assert len(caplog.records) == 1
