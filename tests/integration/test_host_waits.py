"""A step asks its device for its tokens, or for its end where it has none, and nothing else.

One that was begun ahead asks for nothing: its tokens come by an event (test_ahead.py).
Seen on a CPU that is taken for a device: whatever of a tensor becomes a number of Python's
would be waited for there. Triton's interpreter asks, too, which is no device's business.
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine.request import Request, RequestId, Sampling
from engine.running.device import DeviceRunner
from engine.stepping.ahead import AheadStepper
from engine.torch_engine import TorchEngine
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.device import on_device
from tests.fakes.driver import prompt
from tests.integration.test_host_work import Idle

ASKING = {
    *("item", "tolist", "cpu", "nonzero", "unique", "masked_select"),
    *("__bool__", "__int__", "__float__", "__index__"),
}
UNSEEN = "triton", "tests.fakes.device"
PLAIN = Sampling(max_tokens=8, temperature=0.9, top_p=0.95, seed=3, ignore_eos=True)
KINDS = {
    "plain": PLAIN,
    "penalised": replace(PLAIN, presence_penalty=0.3, logit_bias=((5, 2.0),)),
    "greedy": replace(PLAIN, temperature=0),
}


class Step(NamedTuple):
    """Its tokens, how many of them another one is drawn behind, and what was asked."""

    tokens: int
    ends: int
    asked: list[str]


class Asked(TorchFunctionMode):
    """What of tensors becomes a number of Python's meanwhile, but for Triton's interpreter.

    What was brought to the host by `cpu` is there from then on; what the device's stand-in
    brings is waited for by an event, when it is read (tests/fakes/device.py).
    """

    def __init__(self) -> None:
        super().__init__()
        self.names = list[str]()
        self.brought = list[Tensor]()

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401  as torch calls it
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        name, caller = func.__name__, sys._getframe(1).f_globals["__name__"]
        if name in ASKING and not caller.startswith(UNSEEN) and not self._is_here(args[0]):
            self.names.append(name)
        if name != "cpu":
            return func(*args, **kwargs or {})
        self.brought.append(args[0].clone())
        return self.brought[-1]

    def _is_here(self, one: Tensor) -> bool:
        storage = one.untyped_storage().data_ptr()
        return any(storage == each.untyped_storage().data_ptr() for each in self.brought)


def asked_by_steps(engine: TorchEngine, coming: list[Request]) -> list[Step]:
    """Of each step until nothing runs; a request comes whenever two more are over."""
    seen = list[Step]()
    while coming or engine.load.waiting or engine.load.running:
        if coming and len(seen) % 2 == 0:
            engine.generate(coming.pop(0))
        engine.schedule()
        batch = engine.scheduler.batch
        tokens, ends = sum(one.size for one in batch), sum(one.samples for one in batch)
        with Asked() as asked:
            engine.step()
        seen.append(Step(tokens, ends, asked.names))
    return seen


@torch.inference_mode()
def clear_hidden(engine: TorchEngine) -> None:
    """What idle graphs of short prompts leave there is made of memory that nobody has written
    to, and may be NaN, from which no token can be drawn.
    """
    assert isinstance(engine.stepper, AheadStepper)
    runner = engine.stepper.plain.runner
    assert isinstance(runner, DeviceRunner)
    if runner.pieces is not None:
        runner.pieces.hidden.zero_()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eager", [False, True])
def test_a_step_asks_once(tmp_path: Path, kind: str, eager: bool) -> None:
    """Prompts in chunks, some beside decode, then decode steps begun ahead."""
    folder = make_checkpoint(tmp_path)
    engine = on_device(folder, Idle(), max_num_batched_tokens=24, enforce_eager=eager)
    engine.sampler.kernels = True
    clear_hidden(engine)
    coming = [
        Request(RequestId(str(number)), prompt(length), KINDS[kind])
        for number, length in enumerate((60, 5, 40))
    ]
    seen = asked_by_steps(engine, coming)
    assert [step.asked for step in seen if not step.ends] == [["item"]] * 2
    assert all(step.asked in ([], ["item"], ["cpu"]) for step in seen)
    begun_ahead = [step for step in seen if not step.asked]
    assert len(begun_ahead) >= 6
    assert any(step.asked for step in seen if 0 < step.ends < step.tokens)
