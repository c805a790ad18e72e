"""Nodes whose blocks are all taken: what ends gives them back, and whoever waits goes on.

Each test is a way in which other systems hang or lose blocks for good; see
docs/reference/hand-over-failures.md.
"""

from collections import deque
from collections.abc import Callable

import pytest

from api.generator import Leg, TicketEvent
from engine.request import Request, RequestId, Sampling
from kv_transfer.local.faults import Cut, Delay, Fault, On
from kv_transfer.ticket import LEASE_S, KvTicket
from kv_transfer.wire import SILENCE_S
from tests.fakes.model import alone
from tests.unit.test_decode_waiting import Nodes, ask

PREFILL, DECODE = 0, 1
FOR_GOOD = Delay(1e6)


def tickets(nodes: Nodes) -> list[str]:
    return [rid for rid, event in nodes.news if isinstance(event, TicketEvent)]


def decode(nodes: Nodes, name: str, ticket: KvTicket, length: int = 6) -> Request:
    """Hand in a job whose prompt is that of `ask(name[0])`."""
    job = ask(name, length)
    nodes.loops[DECODE].submit(job, Leg(ticket=ticket), nodes.now)
    return job


def turn(nodes: Nodes, node: int, times: int = 1) -> None:
    """Turns of one node, while the other one does nothing."""
    for _ in range(times):
        nodes.news += [*nodes.loops[node].prepare(), *nodes.loops[node].run()]


def assert_nothing_left(nodes: Nodes) -> None:
    nodes.tick(2)
    for engine, source, sink in zip(nodes.engines, nodes.sources, nodes.sinks, strict=True):
        assert engine.load.free_blocks == engine.load.total_blocks
        assert source.book.num_open == sink.book.num_open == 0
        engine.sequences.check_idle()


def abort_first(nodes: Nodes) -> None:
    nodes.loops[PREFILL].abort(RequestId("first"))


def let_leases_end(nodes: Nodes) -> None:
    nodes.now += LEASE_S


@pytest.mark.parametrize("end", [abort_first, let_leases_end])
def test_a_prefill_node_full_of_prompts_on_offer_takes_in_the_next_as_one_ends(
    end: Callable[[Nodes], None],
) -> None:
    """TensorRT-LLM#12313, dynamo#1074: no batch is run meanwhile that could clean up."""
    nodes = Nodes(1)
    for name in ("first", "next"):
        nodes.loops[PREFILL].submit(ask(name, 6), Leg(hold=True), nodes.now)
    nodes.tick(3)
    load = nodes.engines[PREFILL].load
    assert (load.running, load.waiting, nodes.loops[PREFILL].idle) == (0, 1, True)
    assert tickets(nodes) == ["first"]
    end(nodes)
    nodes.tick(2)
    assert tickets(nodes) == ["first", "next"]
    assert nodes.said("next") == alone(ask("next", 6))[:1]
    nodes.loops[PREFILL].abort(RequestId("next"))
    assert_nothing_left(nodes)


def test_a_decode_node_full_of_pulls_that_stand_still_takes_in_the_next_as_one_is_aborted() -> (
    None
):
    """TensorRT-LLM#12313: its engine has nothing to run, so the abort alone has to do."""
    nodes = Nodes(2, seats=1, blocks=16)
    theirs = [nodes.park(PREFILL, ask(name, 6)) for name in ("a", "b")]
    nodes.sinks[DECODE].faults = deque([On("read", FOR_GOOD)])
    for name, ticket in zip(("a decoded", "b decoded"), theirs, strict=True):
        decode(nodes, name, ticket)
    nodes.tick(4)
    loop = nodes.loops[DECODE]
    assert (loop.decode.num_pulling, loop.decode.num_waiting, loop.idle) == (1, 1, True)
    nodes.loops[DECODE].abort(RequestId("a decoded"))
    nodes.sinks[DECODE]._stuck_until = nodes.now
    nodes.tick(8)
    assert nodes.said("b decoded") == alone(ask("b decoded", 6))
    assert nodes.said("a decoded") == []
    assert_nothing_left(nodes)


def test_what_is_evicted_while_a_pull_reads_is_not_what_it_reads() -> None:
    """TensorRT-LLM#12542, #12540: its blocks came from the prefix cache, which gives way."""
    nodes = Nodes(2, blocks=16)
    prompt = ask("prompt", 6)
    nodes.loops[PREFILL].submit(prompt, Leg(), nodes.now)
    nodes.tick(4)
    ticket = nodes.park(PREFILL, ask("p again", 6))
    nodes.sinks[DECODE].faults = deque([On("read", FOR_GOOD)])
    job = decode(nodes, "p decoded", ticket)
    nodes.tick(3)
    assert "read from" in nodes.sinks[DECODE].journal[-1]  # it has begun, and stands still
    kv = nodes.engines[PREFILL].kv
    cached = set(kv.pool._key_of)
    for name in "xyz":  # each takes all that is free
        nodes.loops[PREFILL].submit(ask(name, 9), Leg(), nodes.now)
        turn(nodes, PREFILL, 4)
    assert nodes.engines[PREFILL].load.running == 0
    assert all(nodes.said(name) == alone(ask(name, 9)) for name in "xyz")
    assert len(cached - set(kv.pool._key_of)) <= 16 - 6
    nodes.sinks[DECODE]._stuck_until = nodes.now
    nodes.tick(6)
    assert nodes.said("p decoded") == alone(job)
    assert not nodes.loops[DECODE].load_failures
    assert_nothing_left(nodes)


def test_blocks_of_an_aborted_pull_belong_to_nobody_until_its_read_has_ended() -> None:
    """TensorRT-LLM#14565: on a full node the next job would get them at once."""
    nodes = Nodes(2, blocks=16)
    theirs = [nodes.park(PREFILL, ask(name, 6)) for name in ("a", "b")]
    engine, sink = nodes.engines[DECODE], nodes.sinks[DECODE]
    assert engine.reserve(ask("crowd", 8))
    sink.faults = deque([On("read", Fault.DROP)])  # its bytes are on their way for ever
    for name, ticket in zip(("a decoded", "b decoded"), theirs, strict=True):
        decode(nodes, name, ticket)
    nodes.tick(3)
    assert (engine.load.free_blocks, nodes.loops[DECODE].decode.num_waiting) == (2, 1)
    nodes.loops[DECODE].abort(RequestId("a decoded"))
    nodes.tick(4)
    assert (engine.load.free_blocks, nodes.loops[DECODE].decode.num_waiting) == (2, 1)
    nodes.wait(SILENCE_S + 1)  # the link is given up, and the read with it
    assert nodes.said("b decoded") == alone(ask("b decoded", 6))
    engine.release(RequestId("crowd"))
    nodes.wait(SILENCE_S)
    assert_nothing_left(nodes)


@pytest.mark.parametrize("prefill_goes_on", [True, False])
def test_a_hand_over_in_chunks_ends_although_answers_take_all_the_other_blocks(
    *, prefill_goes_on: bool
) -> None:
    """LMCache#1215: it has its blocks from the start; an answer gives way to another."""
    nodes = Nodes(2, blocks=12, chunk=2, watermark=0)
    answer = Request(RequestId("answer"), (1,), Sampling(11))
    nodes.loops[PREFILL].submit(ask("prompt", 6), Leg(hold=True), nodes.now)
    turn(nodes, PREFILL, 2)
    (ticket,) = (event.ticket for _, event in nodes.news if isinstance(event, TicketEvent))
    nodes.loops[DECODE].submit(answer, Leg(), nodes.now)
    job = decode(nodes, "p decoded", ticket)
    turn(nodes, DECODE, 12)
    load = nodes.engines[DECODE].load
    assert (load.preemptions, load.running, load.waiting) == (1, 0, 1)
    assert nodes.loops[DECODE].decode.num_pulling == 1
    assert nodes.sinks[DECODE].blocks_copied  # the first chunks are there
    nodes.sources[PREFILL].asleep = not prefill_goes_on
    for _ in range(30):
        nodes.now += SILENCE_S / 10
        if prefill_goes_on:
            turn(nodes, PREFILL)
        turn(nodes, DECODE)
    assert nodes.said("p decoded") == alone(job)
    assert nodes.said("answer") == alone(answer)
    assert sum(nodes.loops[DECODE].load_failures.values()) == (not prefill_goes_on)
    nodes.sources[PREFILL].asleep = False
    nodes.loops[PREFILL].abort(RequestId("prompt"))
    assert_nothing_left(nodes)


ERRORS = [
    On("hello", Fault.CUT),
    On("look", Fault.CUT),
    On("read", Fault.CUT),
    On("read", Cut(at_byte=20)),
    On("read", Fault.DROP),
    On("settle", Fault.CUT),
    On("settle", Fault.DROP),
]


@pytest.mark.parametrize("error", ERRORS, ids=str)
def test_a_small_pool_outlives_any_number_of_transfer_errors(error: On) -> None:
    """vllm-ascend#12383: blocks of each failed pull are to be had again for the next one."""
    nodes = Nodes(2, blocks=12)
    for number in range(8):  # they would take 48 blocks together
        name = f"{'abcdefgh'[number]} decoded"
        ticket = nodes.park(PREFILL, ask(name[0], 6))
        nodes.sinks[DECODE].faults = deque([error])
        job = decode(nodes, name, ticket)
        nodes.wait(2 * SILENCE_S + 1)
        assert not nodes.sinks[DECODE].faults, "the error did not happen"
        assert nodes.said(name) == alone(job)
        nodes.loops[PREFILL].abort(RequestId(name[0]))
        nodes.now += 60  # what has failed is tried again
        assert_nothing_left(nodes)
    assert sum(nodes.loops[DECODE].load_failures.values()) == 8
