"""Which tiers an engine gets from its settings, how large they are, whose blocks they read."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

from engine.api import EngineInfo
from engine.attention.kv_memory import KvMemory
from engine.errors import UnusableTier
from engine.settings import EngineConfig
from engine.tiers.opening import check_tiers, open_tiers
from engine.tiers.tiers import Tiers

GIB, BLOCKS, BLOCK_BYTES = 1 << 30, 400, 5000
PLACE_BYTES = 8192  # a head and a block, in whole pages
INFO = EngineInfo("weights", 1601, 16, "bfloat16", "bfloat16", 2, ())


@dataclass
class Memory:
    """What the tiers look at."""

    shape: str = "layers and heads"
    bytes_of_blocks: Tensor = field(
        default_factory=lambda: torch.zeros((BLOCKS, BLOCK_BYTES), dtype=torch.uint8)
    )


def config(
    device: str = "cpu", memory_bytes: float | None = None, disk: Path | None = None
) -> EngineConfig:
    """With a disk for ten blocks and a half."""
    return EngineConfig(
        model="m",
        device=device,
        kv_offloading_size=None if memory_bytes is None else memory_bytes / GIB,
        kv_disk_path=None if disk is None else str(disk),
        kv_disk_size=10.5 * PLACE_BYTES / GIB,
    )


def open_for(asked: EngineConfig, info: EngineInfo, shape: str) -> Tiers | None:
    return open_tiers(asked, info, cast("KvMemory", Memory(shape)))


@contextmanager
def opened(
    asked: EngineConfig, info: EngineInfo = INFO, shape: str = "layers and heads"
) -> Iterator[Tiers]:
    tiers = open_for(asked, info, shape)
    assert tiers is not None
    yield tiers
    tiers.close()


def on_disk(tiers: Tiers) -> int:
    assert tiers.book.disk is not None
    return tiers.book.disk.places


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_without_a_place_for_it_there_is_no_tier(device: str) -> None:
    assert open_for(config(device), INFO, "layers") is None


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_main_memory_is_no_tier_below_itself_but_a_disk_is(device: str) -> None:
    check_tiers(config(device, disk=Path("/kv")))
    with pytest.raises(UnusableTier, match="--kv-offloading-size: with --device cpu"):
        check_tiers(config(device, GIB))
    check_tiers(config("cuda", GIB))


@pytest.mark.parametrize(("size", "slots"), [(16, 16), (16.9, 16), (1000, 1000)])
def test_host_memory_has_as_many_slots_as_its_size_holds(size: float, slots: int) -> None:
    with opened(config(memory_bytes=size * BLOCK_BYTES)) as tiers:
        assert tiers.host.slots.shape == (slots, BLOCK_BYTES)
        assert tiers.book.host.slots == slots
        assert [(one.tier, one.block_bytes) for one in tiers.book.load] == [("cpu", 5000)]


def test_host_memory_for_less_than_a_few_blocks_is_refused_with_what_is_needed() -> None:
    asked = config(memory_bytes=15 * BLOCK_BYTES)
    least = f"{16 * BLOCK_BYTES / GIB:.3g} GiB"
    with pytest.raises(UnusableTier, match=f"--kv-offloading-size: .* need {least}"):
        open_for(asked, INFO, "layers")


@pytest.mark.parametrize(("longest", "slots"), [(1601, 200), (1200, 150), (1201, 152), (9, 50)])
def test_a_disk_alone_has_slots_for_two_of_the_longest(
    tmp_path: Path, longest: int, slots: int
) -> None:
    """The last block of a sequence counts too, though it is not full."""
    with opened(config(disk=tmp_path), replace(INFO, max_model_len=longest)) as tiers:
        assert tiers.book.host.slots == len(tiers.host.slots) == slots
        assert on_disk(tiers) == 10
        assert [one.tier for one in tiers.book.load] == ["cpu", "disk"]


def test_a_disk_below_host_memory_takes_what_host_memory_has(tmp_path: Path) -> None:
    with opened(config(memory_bytes=20 * BLOCK_BYTES, disk=tmp_path)) as tiers:
        assert tiers.book.host.slots == 20
        assert on_disk(tiers) == 10


def test_only_blocks_of_the_same_model_type_and_shape_are_read(tmp_path: Path) -> None:
    asked = config(disk=tmp_path)
    others = (
        replace(INFO, fingerprint="others"),
        replace(INFO, kv_dtype="fp8_e4m3"),
        replace(INFO, block_size=32),
    )
    for number, info in enumerate((INFO, *others), 1):
        with opened(asked, info):
            assert len(list(tmp_path.iterdir())) == number
    with opened(asked, INFO, "heads and layers"):
        assert len(list(tmp_path.iterdir())) == 5
    with opened(asked, replace(INFO, max_model_len=50, eos_token_ids=(7,))):
        assert len(list(tmp_path.iterdir())) == 5
