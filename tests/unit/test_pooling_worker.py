"""A pooling leg: what it says, and that nothing of it stays."""

from array import array

from api.generator import Event, FailedEvent, Leg, PooledEvent, PromptEvent, StageEvent
from engine.request import PoolingRequest, Request, RequestId, Sampling
from kv_transfer.local.connector import LocalSink, LocalSource
from node.loop import NodeLoop
from tests.fakes.engine import FakeEngine
from tests.fakes.node import node_loop

RID = RequestId("p")
PROMPT = tuple(range(1, 41))
LONG = PoolingRequest(RID, PROMPT)


def a_loop(**limits: int) -> NodeLoop:
    engine = FakeEngine(**limits)
    regions, clock = engine.kv_regions, float
    source = LocalSource("e", ("h", 1), regions, "fake", clock)
    return node_loop(engine, source, LocalSink({}, regions, "fake", clock), clock)


def used_blocks(loop: NodeLoop) -> int:
    return loop.load.total_blocks - loop.load.free_blocks


def until_idle(loop: NodeLoop) -> list[tuple[RequestId, Event | PooledEvent]]:
    news = [*loop.prepare(), *loop.run()]
    while not loop.idle:
        news += [*loop.prepare(), *loop.run()]
    return news


def test_a_prompt_is_admitted_run_in_chunks_pooled_and_gone() -> None:
    loop = a_loop(chunk=16)
    assert loop.pool(LONG, since=-2.0) == []
    said = [event for rid, event in until_idle(loop) if rid == RID]
    pooled = PooledEvent(array("f", [len(PROMPT), sum(PROMPT)]).tobytes(), 2)
    stages = [StageEvent("queue", 2.0), StageEvent("pool", 0.0)]
    assert said == [PromptEvent(0), stages[0], stages[1], pooled]
    assert used_blocks(loop) == 0


def test_it_runs_in_the_batches_of_answers() -> None:
    loop = a_loop(chunk=16)
    loop.decode.submit(Request(RequestId("a"), PROMPT, Sampling(30)), Leg(), 0.0)
    loop.pool(LONG, since=0.0)
    names = [rid for rid, event in until_idle(loop) if not isinstance(event, StageEvent)]
    assert names.index(RID) < names.index(RequestId("a"), 2) < len(names) - 1
    assert used_blocks(loop) == 0


def test_an_abort_gives_its_blocks_back_in_any_state() -> None:
    for turns in range(5):
        loop = a_loop(chunk=16)
        loop.pool(LONG, since=0.0)
        for _ in range(turns):
            loop.prepare()
            loop.run()
        loop.abort(RID)
        assert used_blocks(loop) == 0
        assert until_idle(loop) == []
        loop.pool(LONG, since=0.0)  # its name is free again


def test_what_never_fits_is_refused_at_once() -> None:
    loop = a_loop(blocks=4)
    ((rid, event),) = loop.pool(LONG, since=0.0)
    assert (rid, isinstance(event, FailedEvent) and event.param) == (RID, "input")
    assert used_blocks(loop) == 0
