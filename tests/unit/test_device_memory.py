"""KV in a device's memory, as far as it can be told without one: what others are told of it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import nixl_cu12._bindings as bindings
import pytest
import torch

from engine.api import KvRegion
from engine.errors import UnusableTier
from engine.tiers.host_memory import CopyEvent, HostMemory, pin
from engine.tiers.moves import Copy
from kv_transfer.blocks.mapping import BlockMapping, MappedPiece
from kv_transfer.errors import UnusableMemory
from kv_transfer.layout import KvLayout
from kv_transfer.ledger.reads import ReadOrder
from kv_transfer.movers.descriptors import Numbers, Rows
from kv_transfer.movers.nixl import NixlMover
from kv_transfer.movers.nixl_build import build_for
from kv_transfer.movers.nixl_transports import READS_BY_CUDA_IPC, choose_transports
from kv_transfer.movers.tcp import TcpMover
from kv_transfer.regions import BlockRun, RemoteRegion
from kv_transfer.thread.devices import enter_device
from kv_transfer.wire import Welcome

AT, OURS, THEIRS, BLOCK, BLOCKS = ("source", 1), 1 << 40, 1 << 41, 4096, 64
REGIONS = [KvRegion(OURS, BLOCK, BLOCKS, "cuda:3")]


@dataclass(eq=False)
class Agent:
    """Writes down what it is told."""

    told: list[tuple[Any, ...]] = field(default_factory=list)
    takes: bool = True

    def register_memory(self, regions: list[tuple[int, int, int, str]], kind: str) -> None:
        if not self.takes:
            raise bindings.nixlBackendError("no CUDA here")
        self.told.append(("register", kind, regions))

    def prep_xfer_dlist(self, name: str, rows: Rows, kind: str) -> str:
        self.told.append(("prepare", kind, rows.tolist()))
        return name

    def add_remote_agent(self, _card: bytes) -> str:
        return "peer"

    def get_xfer_descs(self, rows: Rows, kind: str) -> tuple[str, list[list[int]]]:
        return kind, rows.tolist()

    def initialize_xfer(self, *what: object) -> str:
        self.told.append(what)
        return "handle"

    def make_prepped_xfer(
        self, operation: str, ours: str, here: Numbers, theirs: str, there: Numbers
    ) -> str:
        self.told.append((operation, ours, here.tolist(), theirs, there.tolist()))
        return "handle"

    def transfer(self, _handle: str) -> None:
        """It is begun."""

    def check_xfer_state(self, _handle: str) -> str:
        return "PROC"


def mover_over(agent: Agent) -> NixlMover:
    mover = NixlMover.over(agent, REGIONS)  # type: ignore[arg-type]
    theirs = RemoteRegion(THEIRS, BLOCK, BLOCKS, "cuda:1")
    layout = KvLayout("bytes", 1, 1, (BLOCK,))
    mover.connect(AT, Welcome("engine", "same", layout, (theirs,), (b"card",), "here"))
    return mover


def test_nixl_is_told_of_vram_with_the_index_of_its_device_on_either_side() -> None:
    agent = Agent()
    mover_over(agent)
    assert agent.told == [
        ("register", "VRAM", [(OURS, BLOCK * BLOCKS, 3, "")]),
        ("prepare", "VRAM", [[OURS, BLOCK, 3, BLOCK, BLOCKS]]),
        ("prepare", "VRAM", [[THEIRS, BLOCK, 1, BLOCK, BLOCKS]]),
    ]


def test_whole_blocks_and_parts_of_them_are_read_from_device_to_device() -> None:
    agent = Agent()
    mover = mover_over(agent)
    mover.read(ReadOrder(1, AT, [BlockRun(5, 7, 2)]))
    half = BlockMapping(
        slot_bytes=BLOCK // 2,
        step_bytes=BLOCK,
        pieces=(MappedPiece(0, 0, 0, 2048, BLOCK // 2),),
    )
    mover.read(ReadOrder(2, AT, [BlockRun(5, 7, 1)], cut=half))
    mover.poll()
    assert agent.told[3] == ("READ", "NIXL_INIT_AGENT", [7, 8], "peer", [5, 6])
    here = ("VRAM", [[OURS + 7 * BLOCK + 2048, BLOCK // 2, 3]])
    there = ("VRAM", [[THEIRS + 5 * BLOCK, BLOCK // 2, 1]])
    assert agent.told[4] == ("READ", here, there, "peer")


def test_memory_that_nixl_does_not_take_is_named() -> None:
    with pytest.raises(UnusableMemory, match=r"the memory of cuda:3 .*built for this CUDA"):
        mover_over(Agent(takes=False))


def test_tcp_refuses_a_devices_memory_by_name() -> None:
    with pytest.raises(UnusableMemory, match=r"--kv-connector tcp .* not on cuda:3"):
        TcpMover.start("127.0.0.1", "127.0.0.1", REGIONS)


def test_transports_are_chosen_on_a_cpu_only_and_only_where_nobody_has() -> None:
    on_cpu = [KvRegion(OURS, BLOCK, BLOCKS, "cpu")]
    ours, theirs, device = dict[str, str](), {"UCX_TLS": "rc"}, dict[str, str]()
    choose_transports(on_cpu, ours)
    choose_transports(on_cpu, theirs)
    choose_transports(REGIONS, device)
    assert (ours, theirs) == ({"UCX_TLS": "tcp,sm"}, {"UCX_TLS": "rc"})
    assert "UCX_TLS" not in device


@pytest.mark.parametrize(("before", "after"), [({}, "on"), ({READS_BY_CUDA_IPC: "no"}, "no")])
def test_a_device_is_read_by_cuda_ipc_without_nvlink_too(
    before: dict[str, str], after: str
) -> None:
    choose_transports(REGIONS, before)
    assert before == {READS_BY_CUDA_IPC: after}


def test_memory_that_cannot_be_shared_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Reads of it work, at a thousandth of the speed."""
    choose_transports(REGIONS, {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"})
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        choose_transports(REGIONS, {"PYTORCH_CUDA_ALLOC_CONF": "x:1,expandable_segments:True"})
    assert "PYTORCH_CUDA_ALLOC_CONF" in caplog.text


def test_nixl_is_built_for_the_cuda_of_torch() -> None:
    both = ("nixl_cu13", "nixl_cu12")
    assert build_for("13.0", both) == "nixl_cu13"
    assert build_for("12.9", both) == "nixl_cu12"
    assert build_for(None, both) == "nixl_cu12"
    assert build_for("13.0", ("nixl_cu12",)) == "nixl_cu12"
    with pytest.raises(ImportError, match="not installed"):
        build_for(None, ())


@dataclass
class Stream:
    device: str
    waited: int = 0

    def synchronize(self) -> None:
        self.waited += 1


@dataclass
class Cuda:
    told: list[tuple[str, object]] = field(default_factory=list)

    def set_device(self, device: str) -> None:
        self.told.append(("device", device))

    def Stream(self, device: str) -> Stream:  # noqa: N802
        return Stream(device)

    def set_stream(self, stream: object) -> None:
        self.told.append(("stream", stream))


def test_the_transfer_thread_works_on_the_device_and_on_a_stream_of_its_own() -> None:
    """Waiting for the stream gives the thread the device's context."""
    cuda = Cuda()
    enter_device(REGIONS, cuda)
    assert cuda.told == [("device", "cuda:3"), ("stream", Stream("cuda:3", waited=1))]


def test_of_several_ranks_a_thread_has_the_device_of_its_own() -> None:
    cuda, other = Cuda(), KvRegion(OURS, BLOCK, BLOCKS, "cuda:4")
    enter_device([*REGIONS, other], cuda)
    assert cuda.told[0] == ("device", "cuda:3")


def test_on_a_cpu_a_thread_has_nothing_to_tell() -> None:
    cuda = Cuda()
    enter_device([KvRegion(OURS, BLOCK, BLOCKS, "cpu")], cuda)
    assert cuda.told == []


@dataclass
class Runtime:
    answer: int = 0
    pinned: list[tuple[int, int, int]] = field(default_factory=list)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self.pinned.append((address, size, flags))
        return self.answer


def test_host_memory_is_pinned_as_it_is_or_refused() -> None:
    memory, runtime = torch.empty(100, 300, dtype=torch.uint8), Runtime()
    pin(memory, runtime)
    assert runtime.pinned == [(memory.data_ptr(), 30000, 0)]
    with pytest.raises(UnusableTier, match=r"cannot be pinned \(CUDA error 2\)"):
        pin(memory, Runtime(answer=2))


@dataclass
class Event:
    """Of copies to and from a device; `waited` has who was waited for, and where."""

    device: torch.device
    where: list[torch.device] = field(default_factory=list)
    waited: list[torch.device] = field(default_factory=list)

    def synchronize(self) -> None:
        self.waited += self.where

    @contextmanager
    def enter(self, device: torch.device) -> Iterator[None]:
        self.where.append(device)
        yield
        self.where.pop()


def test_whoever_waits_for_copies_is_on_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk's thread has none of its own: CUDA would take memory of the first for it."""
    event = Event(torch.device("cuda", 1))
    monkeypatch.setattr(torch.cuda, "device", event.enter)
    CopyEvent(event).wait()  # type: ignore[arg-type]
    assert event.waited == [event.device]


@dataclass
class Order:
    """Two streams of a device, and in which order they are told what."""

    slots: torch.Tensor
    told: list[object] = field(default_factory=list)

    def wait_stream(self, stream: str) -> None:
        self.told.append(f"copies wait for {stream}")

    @contextmanager
    def enter(self, stream: "Order") -> Iterator[None]:
        assert stream is self
        yield
        self.told.append("left")

    def record(self, stream: "Order") -> None:
        assert stream is self
        self.told.append(self.slots.tolist())


class Computing(str):
    """The stream of batches."""

    __slots__ = ()

    def wait_event(self, event: Order) -> None:
        event.told.append(f"{self} waits for copies")


def test_copies_are_begun_behind_the_last_batch_and_the_next_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or blocks would be saved that others have overwritten, or used before they are back."""
    host = HostMemory(torch.tensor([[7], [8]], dtype=torch.uint8), 2)
    order = Order(host.slots.zero_())
    host._stream = order  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Computing("computing"))
    monkeypatch.setattr(torch.cuda, "stream", order.enter)
    monkeypatch.setattr(torch.cuda, "Event", lambda: order)
    begun = host.carry_out([Copy(0, 1, out=True), Copy(1, 0, out=True)])
    assert order.told == [
        "copies wait for computing",
        [[8], [7]],
        "left",
        "computing waits for copies",
    ]
    assert begun.event is order  # type: ignore[comparison-overlap]
