"""GetTokenizer: a router that does not have the model's folder gets its text files."""

import asyncio
import io
import zipfile
from hashlib import sha256
from random import Random

import grpc
import pytest

from api.grpc import tokenizer_archive
from api.grpc.protos import tokenizer_pb2
from api.grpc.server import VLLM_ENGINE
from api.text_files import TextParcel, pack
from tests.fakes.grpc_server import Caller, serving
from tests.fakes.text import saying

FILES = {
    "tokenizer.json": Random(1).randbytes(150_000),  # nothing to compress
    "config.json": b"{}",
    "1_Pooling/config.json": b"{}",
}
CHUNK = 65_536


async def asked(caller: Caller) -> list[tokenizer_pb2.GetTokenizerChunk]:
    call = caller.call("GetTokenizer", tokenizer_pb2.GetTokenizerRequest(), VLLM_ENGINE)
    async with asyncio.timeout(30):
        return [chunk async for chunk in call]


async def test_the_files_come_in_pieces_of_an_archive() -> None:
    async with serving(saying("a"), parcel=pack(FILES)) as caller:
        chunks = await asked(caller)
    data = b"".join(chunk.data for chunk in chunks)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == FILES
    sizes = [len(chunk.data) for chunk in chunks]
    assert sizes[:-1] == [CHUNK, CHUNK]
    assert 0 < sizes[-1] <= CHUNK
    assert [chunk.sha256 for chunk in chunks] == ["", "", sha256(data).hexdigest()]


async def test_an_archive_is_made_once_and_is_the_same_on_all_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed, made = tokenizer_archive._packed, list[TextParcel]()

    def counted(parcel: TextParcel) -> tokenizer_archive.Archive:
        made.append(parcel)
        return packed(parcel)

    monkeypatch.setattr(tokenizer_archive, "_packed", counted)
    async with serving(saying("a"), parcel=pack(FILES)) as caller:
        first, second = await asyncio.gather(asked(caller), asked(caller))
    assert first == second
    assert len(made) == 1
    async with serving(saying("a"), parcel=pack(dict(reversed(FILES.items())))) as caller:
        assert await asked(caller) == first


@pytest.mark.parametrize("parcel", [None, pack({"config.json": b"{}"})])
async def test_a_node_without_a_tokenizer_has_none_to_give(parcel: TextParcel | None) -> None:
    async with serving(saying("a"), parcel=parcel) as caller:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError, match="no tokenizer to give") as refused:
                await asked(caller)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
