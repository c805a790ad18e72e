"""Copies of states lie around a pass, and its tokens are read behind them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch

from engine.attention.kv_memory import KvMemory
from engine.attention.plan import BlockCopies, Plan
from engine.running.runner import (
    CopyingRunner,
    DeviceSampler,
    ForwardOutput,
    HostCopy,
    PendingTokens,
)


@dataclass
class Recording:
    """A runner with its memory and sampler, and what was asked of them, in order."""

    draws: bool = True
    heard: list[object] = field(default_factory=list)

    @property
    def device_sampler(self) -> DeviceSampler | None:
        return cast("DeviceSampler", self) if self.draws else None

    def copy(self, blocks: Sequence[tuple[int, int]]) -> None:
        self.heard += blocks

    def run(self, plan: Plan) -> ForwardOutput:
        self.heard.append("run")
        pending = PendingTokens(Told(self.heard, "tokens")) if self.draws else None
        return ForwardOutput(torch.zeros(1, 2), None, pending)

    def mark(self) -> HostCopy:
        self.heard.append("mark")
        return Told(self.heard, "marked")


@dataclass
class Told:
    """Numbers that say when they are read."""

    heard: list[object]
    name: str

    def read(self) -> list[int]:
        self.heard.append(self.name)
        return [len(self.name)]


def ran(ours: Recording, copies: BlockCopies) -> ForwardOutput:
    plan = Plan([1], (), (), [0], copies=copies)
    return CopyingRunner(ours, cast("KvMemory", ours)).run(plan)


def test_tokens_are_read_behind_the_copies() -> None:
    ours = Recording()
    output = ran(ours, BlockCopies([(1, 2)], [(3, 4)]))
    assert output.pending is not None
    assert ours.heard == [(1, 2), "run", (3, 4), "mark"]
    assert output.pending.tokens.read() == [len("tokens")]
    assert ours.heard[4:] == ["marked", "tokens"]


def test_without_copies_behind_it_a_step_has_no_mark() -> None:
    ours = Recording()
    output = ran(ours, BlockCopies([(1, 2)]))
    assert output.pending is not None
    output.pending.tokens.read()
    assert ours.heard == [(1, 2), "run", "tokens"]


def test_without_a_sampler_on_the_device_there_is_none() -> None:
    ours = Recording(draws=False)
    assert ran(ours, BlockCopies((), [(3, 4)])).pending is None
    assert ours.heard == ["run", (3, 4)]
