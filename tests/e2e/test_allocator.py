"""Which allocator proxies and their workers run with, by what is mapped into them."""

from pathlib import Path
from typing import Literal

import pytest

from bench.cpu import children
from deploy.allocator import tbb_libraries
from tests.e2e.cluster import running

PROXY = "libtbbmalloc_proxy"


def has(pid: int) -> bool:
    return PROXY in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.skipif(
    not tbb_libraries(), reason="TBB is not installed, which `make` does on x86-64"
)
@pytest.mark.parametrize("allocator", ["auto", "system"])
async def test_proxies_have_it_and_their_workers_unless_told_otherwise(
    tiny: Path, allocator: Literal["auto", "system"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    async with running(tiny, workers=2, allocator=allocator) as cluster:
        parent = cluster.door("proxy")
        everybody = {parent, *children(parent)}
        assert len(everybody) >= 3
        assert {has(pid) for pid in everybody} == {allocator == "auto"}
        assert not has(cluster.door("prefill-0"))
        assert not has(cluster.engine("decode-0"))
