"""A CPU that is taken for a device: kernels in plain torch or interpreted, and graphs."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import Work
from torch.utils._python_dispatch import TorchDispatchMode

from engine.kernels.contract import PagedKernels
from engine.kernels.gpu.sampling.adjusting import adjust_twin, apply_bitmasks_twin
from engine.kernels.gpu.twins import TorchKernels
from engine.kernels.products import Products
from engine.kernels.sampling import SamplingKernels
from engine.kernels.searching import Search, search_for
from engine.kernels.token_logprobs import TokenLogprobs
from engine.loading import load_engine
from engine.request import Sampling
from engine.running.recorder import Cut, Recorder, Replay
from engine.running.runner import HostCopy
from engine.sampling.logprobs import logprobs_of
from engine.sampling.logprobs import top_logprobs as of_sampler
from engine.sampling.noise import gumbel
from engine.sampling.truncation import truncate, truncates
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine

DEVICE: dict[str, Any] = {
    "dtype": "float32",
    "max_num_seqs": 6,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 1 << 24,
}
Call = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any], object]
ASKING = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}


class TapeRecorder:
    """Captures as a CUDA graph does: operations on tensors that are given, and no Python.

    What was captured is done again on the very tensors of then, wherever the work would find
    its tensors by now; numbers of the host are what they were. What asks the device is refused.
    Each replay is noted in `order`. `spoken` has for each capture what was said to other ranks:
    calls, and shapes.
    """

    def __init__(self, order: list[str] | None = None) -> None:
        self.order = list[str]() if order is None else order
        self.captured = self.captured_in_pieces = 0
        self.spoken = list[list[tuple[str, list[torch.Size]]]]()
        self.replayed = self.replayed_pieces = 0

    def record(self, work: Callable[[], None]) -> Replay:
        work()
        with _Tape() as tape:
            work()
        self.captured += 1
        self.spoken.append([_said(call) for call in tape.calls if _is_said(call)])

        def replay() -> None:
            self.replayed += 1
            self.order.append("replay")
            tape.play()

        return replay

    def record_pieces(self, work: Callable[[Cut], None]) -> list[Replay]:
        work(lambda between: between())
        with ExitStack() as taping:
            tapes = [taping.enter_context(_Tape())]

            def cut(_between: Callable[[], None]) -> None:
                taping.close()
                tapes.append(taping.enter_context(_Tape()))

            work(cut)
        self.captured_in_pieces += 1
        self.spoken.append(
            [_said(call) for tape in tapes for call in tape.calls if _is_said(call)]
        )
        return [partial(self._play_piece, tape) for tape in tapes]

    def lend(self, tensor: Tensor) -> Tensor:
        """Itself: here what is captured keeps its memory."""
        return tensor

    def _play_piece(self, tape: "_Tape") -> None:
        self.replayed_pieces += 1
        tape.play()


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls = list[Call]()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401  as torch calls it
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        assert func not in ASKING, f"{func} waits for the device in the middle of a graph"
        kwargs = kwargs or {}
        made = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, made))
        return made

    def play(self) -> None:
        for call in self.calls:
            _again(call)


def _again(call: Call) -> None:
    func, args, kwargs, made = call
    fresh = func(*args, **kwargs)
    if _is_said(call):
        assert isinstance(fresh, tuple)
        Work.unbox(fresh[1]).wait()  # where it is in line, nobody waits
        return
    for old, new in zip(_tensors(made), _tensors(fresh), strict=True):
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)


def _is_said(call: Call) -> bool:
    """To other ranks; it writes to what it was given."""
    return str(call[0]).startswith("c10d.")


def _said(call: Call) -> tuple[str, list[torch.Size]]:
    flat = [one[0] if isinstance(one, list) else one for one in call[1]]
    return str(call[0]), [one.shape for one in flat if isinstance(one, Tensor)]


def _tensors(made: object) -> list[Tensor]:
    if isinstance(made, Tensor):
        return [made]
    return (
        [one for one in made if isinstance(one, Tensor)]
        if isinstance(made, tuple | list)
        else []
    )


def draw(
    logits: Tensor,
    temperatures: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    keys: Tensor,
    *,
    instead: Tensor | None = None,
    out: Tensor,
    alive: Tensor | None = None,
    search: Search,
) -> Tensor:
    """As the sampler does on a CPU (engine/sampling/sampler.py)."""
    asked = [tuple(row) for row in torch.stack([temperatures, top_k, top_p, min_p], 1).tolist()]
    assert search >= search_for(asked)
    numbers = zip(*(one.tolist() for one in (temperatures, top_k, top_p, min_p)), strict=True)
    for row, (temperature, most, mass, least) in enumerate(numbers):
        ours, ids = logits[row : row + 1].clone(), torch.arange(logits.shape[1])[None]
        if temperature:
            ours /= temperature
            sampling = Sampling(top_k=most, top_p=mass, min_p=least)
            if truncates(sampling):
                (kept,) = truncate(ours, [sampling])
                ours, ids = kept.logits, kept.ids
            ours = ours + gumbel(keys[row : row + 1], ids)
        out[row] = ids[0, ours.argmax(1)]
    left = logits.max(1).values > -torch.inf
    if instead is not None:
        out.copy_(torch.where(left, out, instead))
    if alive is not None:
        alive.copy_(left)
    return out


def tell(logits: Tensor, rows: Tensor, chosen: Tensor, told: TokenLogprobs) -> None:
    """As the sampler does on a CPU (engine/sampling/logprobs.py)."""
    most = told.tokens.shape[1]
    found = of_sampler(logprobs_of(logits[rows]), chosen.tolist(), most)
    for index, (own, *others) in enumerate(found):
        told.chosen[index], told.ranks[index] = own.logprob, own.rank
        told.tokens[index] = torch.tensor([one.token for one in others])
        told.logprobs[index] = torch.tensor([one.logprob for one in others])


class _FakeHostCopy:
    def __init__(self, numbers: Tensor, accelerator: "FakeAccelerator") -> None:
        self._numbers, self._accelerator = numbers.tolist(), accelerator
        self._name = accelerator.begun
        accelerator.begun += 1
        accelerator.told.append(f"begin {self._name}")

    def read(self) -> list[int]:
        self._accelerator.told.append(f"read {self._name}")
        self._accelerator.order.append("read")
        return self._numbers


class FakeAccelerator:
    """A CPU for a device, whose memory is as large as it is told to be.

    Where it `draws`, it notes what was begun, waited for and read; and in `order` what was
    replayed, drawn and read.
    """

    def __init__(
        self,
        kernels: PagedKernels | None = None,
        free: int = 1 << 30,
        total: int = 1 << 30,
        *,
        draws: bool = False,
        products: Products | None = None,
    ) -> None:
        self.kernels: PagedKernels = kernels or TorchKernels()
        self.products = products
        self.order = list[str]()
        self.free, self.total, self.tape = free, total, TapeRecorder(self.order)
        self.drawing = (
            SamplingKernels(self._draw, adjust_twin, apply_bitmasks_twin, tell)
            if draws
            else None
        )
        self.begun, self.waits, self.told = 0, 0, list[str]()

    def begin_anew(self) -> None:
        """What the start of an engine did is not counted."""
        self.begun, self.waits, self.told = 0, 0, []
        self.order.clear()

    def wait(self) -> None:
        self.waits += 1

    def _draw(self, *numbers: Tensor, **more: Any) -> Tensor:  # noqa: ANN401  as `draw` has it
        self.order.append("draw")
        return draw(*numbers, **more)

    def copy_to_host(self, numbers: Tensor) -> HostCopy:
        return _FakeHostCopy(numbers, self)

    def recorder(self) -> Recorder:
        return self.tape

    def memory_bytes(self) -> tuple[int, int]:
        return self.free, self.total

    def empty_cache(self) -> None:
        return


def on_device(
    folder: Path, accelerator: FakeAccelerator | None = None, **settings: object
) -> TorchEngine:
    """An engine in float32 whose steps are a device's; `settings` are EngineConfig's."""
    chosen: dict[str, Any] = {**DEVICE, "threads": 1, **settings}
    config = EngineConfig(model=str(folder), **chosen)
    return load_engine(config, accelerator=accelerator or FakeAccelerator())
