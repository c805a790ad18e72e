"""The gate without HTTP: turns, and what is left when a task ends at any moment."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from api.gate import AdmissionRequest, DeadlineExceeded
from api.generator import PooledEvent
from engine.request import PoolingRequest, RequestId
from proxy.admission.admission import Admission
from proxy.admission.gate import AdmissionGate, GatedEmbedder, caller
from proxy.admission.limits import ApiCaller, KeyLimits
from proxy.admission.pools import NodeCounts
from tests.fakes.limits import limits
from tests.fakes.waiting import comes_true

ONE = AdmissionRequest(10, 10)


def gate_for_one() -> AdmissionGate:
    return AdmissionGate(Admission(limits(requests=1)))


async def waiting(gate: AdmissionGate, visit: AdmissionRequest, began: list[str]) -> None:
    """Pass the gate, and note whose turn it was."""
    async with gate.enter(visit):
        began.append(caller.get().name)


async def in_line(gate: AdmissionGate, count: int) -> None:
    """Until that many wait."""
    await comes_true(lambda: len(gate._waiting) == count)


async def test_a_task_that_is_cancelled_when_its_turn_comes_leaves_its_place() -> None:
    gate = gate_for_one()
    async with AsyncExitStack() as first:
        await first.enter_async_context(gate.enter(ONE))
        late = asyncio.create_task(waiting(gate, ONE, []))
        await in_line(gate, 1)
    late.cancel()  # it was let in, and has not run since
    with pytest.raises(asyncio.CancelledError):
        await late
    assert (gate.admission.in_use.choices, gate._waiting) == (0, {})


async def test_a_task_that_was_cancelled_before_its_turn_is_passed_over() -> None:
    gate = gate_for_one()
    async with AsyncExitStack() as first:
        await first.enter_async_context(gate.enter(ONE))
        late = asyncio.create_task(waiting(gate, ONE, []))
        await in_line(gate, 1)
        late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    assert (gate.admission.in_use.choices, gate._waiting) == (0, {})


async def test_a_first_token_lets_in_who_waits_for_the_prompts_place() -> None:
    gate, began = AdmissionGate(Admission(limits(prefill_requests=1))), list[str]()
    gate.nodes = lambda _: NodeCounts(1, 1)
    async with gate.enter(ONE) as first:
        late = asyncio.create_task(waiting(gate, ONE, began))
        await in_line(gate, 1)
        first.record_tokens(1)
        await late
    assert began == ["-"]


async def test_vectors_take_no_place_of_answers() -> None:
    gate = AdmissionGate(Admission(limits(node_requests=1)), lambda _: NodeCounts(1, 1))
    async with gate.enter(AdmissionRequest(10, 0)), gate.enter(ONE):
        assert gate.admission.in_use.choices == 2


async def test_nobody_is_more_urgent_than_the_key_may_be() -> None:
    gate, began = gate_for_one(), list[str]()
    async with gate.enter(ONE):
        tasks = list[asyncio.Task[None]]()
        for name, priority in (("pushing", -9), ("urgent", -1)):
            caller.set(ApiCaller(name, KeyLimits(min_priority=-1 if name == "urgent" else 0)))
            visit = AdmissionRequest(10, 10, priority=priority)
            tasks.append(asyncio.create_task(waiting(gate, visit, began)))
        await in_line(gate, 2)
    await asyncio.gather(*tasks)
    assert began == ["urgent", "pushing"]


async def test_an_answer_that_takes_too_long_is_counted_as_that() -> None:
    gate = gate_for_one()
    with pytest.raises(DeadlineExceeded):
        async with gate.enter(ONE):
            raise DeadlineExceeded("too long")
    assert gate.admission.refused == {"timeout": 1}
    assert gate.admission.in_use.choices == 0


@dataclass
class SlowEmbedder:
    """It takes three seconds, by the clock that it moves."""

    now: float = 0.0

    async def embed(self, requests: Sequence[PoolingRequest]) -> Sequence[PooledEvent]:
        self.now += 3.0
        return [PooledEvent(b"", 0) for _ in requests]


async def test_vectors_say_how_long_prompts_take() -> None:
    embedder, admission = SlowEmbedder(), Admission(limits(prefill_requests=1))
    nodes = NodeCounts(prefill=1)
    gate = AdmissionGate(admission, lambda _: nodes, clock=lambda: embedder.now)
    await GatedEmbedder(embedder, gate).embed([PoolingRequest(RequestId("a"), (1, 2))])
    async with gate.enter(ONE):
        late = asyncio.create_task(waiting(gate, ONE, []))
        await in_line(gate, 1)
        (entry,) = gate._waiting
        assert admission.wait_s(entry, nodes) == 3.0
    await late
