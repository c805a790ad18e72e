"""Weights straight onto a device: the same numbers, and no second copy in main memory.

Run on the CPU, as a device that only happens to have its memory there.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from engine.checkpoints.device_files import DTYPES, DeviceFile
from engine.checkpoints.staging import DeviceUploader, read_all
from engine.checkpoints.store import open_store
from engine.errors import UnusableCheckpoint
from tests.fakes.checkpoints import make_checkpoint

CPU = torch.device("cpu")
root = Path(__file__).parents[2]


def read(path: Path, buffer_bytes: int = 1000) -> DeviceFile:
    """Buffers so small that every tensor takes several."""
    return DeviceFile.open(path, DeviceUploader.on(CPU, buffer_bytes))


def test_every_tensor_is_what_the_file_has(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path) / "model.safetensors"
    ours = read(path)
    with safe_open(path, framework="pt") as theirs:
        for name in theirs.keys():  # noqa: SIM118
            assert torch.equal(ours.get_tensor(name), theirs.get_tensor(name))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_type_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    some = torch.randint(0, 255, (7, 3, 8), dtype=torch.uint8)
    one = some.bool() if dtype is torch.bool else some.view(dtype)
    save_file(
        {"odd": torch.ones(1), "x": one, "scalar": one.flatten()[0].clone()}, tmp_path / "x"
    )
    file = read(tmp_path / "x", 50)
    for name, said in (("x", one), ("scalar", one.flatten()[0])):
        got = file.get_tensor(name)
        assert got.dtype is dtype
        assert got.shape == said.shape
        assert torch.equal(bytes_of(got), bytes_of(said))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def test_a_part_of_a_tensor_is_read_alone(tmp_path: Path) -> None:
    whole = torch.randn(50, 60)
    save_file({"x": whole}, tmp_path / "x")
    file = read(tmp_path / "x")
    counted = list[int]()
    read_all, staging = file.staging.read, file.staging

    class Counting(DeviceUploader):
        def read(self, file: int, offset: int, count: int) -> torch.Tensor:
            counted.append(count)
            return read_all(file, offset, count)

    file.staging = Counting(staging.device, staging.buffers)
    assert torch.equal(file.get_slice("x")[slice(10, 20),], whole[10:20])
    assert counted == [10 * 60 * 4]
    part = file.get_slice("x")[slice(None), slice(5, 9)]
    assert torch.equal(part, whole[:, 5:9])
    assert part.is_contiguous()
    assert file.get_slice("x").get_shape() == [50, 60]


def test_a_file_that_was_cut_is_refused(tmp_path: Path) -> None:
    save_file({"x": torch.randn(500, 60)}, tmp_path / "x")
    file = read(tmp_path / "x")
    with (tmp_path / "x").open("r+b") as data:
        data.truncate(5000)
    with pytest.raises(UnusableCheckpoint, match="ends before its last tensor"):
        file.get_tensor("x")


def test_a_file_system_that_gives_little_at_a_time_is_asked_again() -> None:
    content, into = bytes(range(100)), bytearray(60)

    def little(_file: int, views: list[memoryview], offset: int) -> int:
        some = content[offset : offset + min(7, len(views[0]))]
        views[0][: len(some)] = some
        return len(some)

    read_all(0, 30, memoryview(into), little)
    assert into == content[30:90]


def test_what_is_not_a_cpu_gets_its_files_read(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path) / "model.safetensors"
    store = open_store([path], torch.device("meta"))
    assert {type(file) for file in store.tensors.values()} == {DeviceFile}


def test_a_type_that_torch_has_not_is_named(tmp_path: Path) -> None:
    save_file({"x": torch.ones(3)}, tmp_path / "x")
    file = read(tmp_path / "x")
    file.entries["x"]["dtype"] = "F4"
    with pytest.raises(UnusableCheckpoint, match="x is of type F4"):
        file.get_tensor("x")


LOADS = """
import sys, torch
from pathlib import Path
from engine.checkpoints.store import open_store
def peak():
    # not getrusage's, which begins with that of whoever started us
    (line,) = [one for one in open("/proc/self/status") if one.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024
torch.ones(1 << 20).sum()
before = peak()
store = open_store([Path(sys.argv[1])], torch.device("meta"))
for name, file in store.tensors.items():
    assert file.get_tensor(name).shape == (1 << 12, 1 << 12)
print(peak() - before, store.total_bytes)
"""


def test_a_load_takes_no_more_main_memory_than_its_buffers(tmp_path: Path) -> None:
    """Onto a device that keeps nothing, of tensors that are many times the buffers."""
    one = torch.zeros(1 << 12, 1 << 12)
    save_file({f"x{index}": one.clone() for index in range(8)}, tmp_path / "x")
    run = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path / "x")],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    grown, total = map(int, run.stdout.split())
    assert total > 512 << 20
    assert 100 << 20 < grown < 160 << 20  # two buffers of 64 MiB, and what threads take


def test_on_a_cpu_files_stay_mapped(tmp_path: Path) -> None:
    path = make_checkpoint(tmp_path) / "model.safetensors"
    store = open_store([path], CPU)
    assert not any(isinstance(file, DeviceFile) for file in store.tensors.values())
    assert store.total_bytes == path.stat().st_size
