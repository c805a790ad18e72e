"""What one request and one token cost is told from two lengths of answers."""

import asyncio
import os
import subprocess
import sys

import pytest
import uvloop

from bench.proxy.answers import HERE, LoadResult, Script
from bench.proxy.figures import CpuCosts, FirstTokenTimes, WindowWork, verdict
from bench.proxy.node import ScriptedConnection, ScriptedNodes, Stream
from bench.proxy.places import CoreSets, started_on
from engine.request import FinishReason, RequestId


def window(**given: object) -> LoadResult:
    said = {"started": 10, "ended": 10, "events": 0, "tokens": 0, "reads": 0, "seconds": 1.0}
    return LoadResult(**{"firsts": [], "cpu_s": {}, "own_cpu_s": 0.0, **said, **given})  # type: ignore[arg-type]


def test_two_lengths_tell_a_request_from_its_tokens() -> None:
    short = WindowWork(requests=100, tokens=800, cpu_s=100 * 500e-6 + 800 * 50e-6)
    long = WindowWork(requests=30, tokens=3840, cpu_s=30 * 500e-6 + 3840 * 50e-6)
    costs = CpuCosts.of(short, long)
    assert costs.request_s == pytest.approx(500e-6)
    assert costs.token_s == pytest.approx(50e-6)


def test_a_request_that_a_window_cuts_counts_half() -> None:
    done = window(started=12, ended=9, tokens=40, events=50, cpu_s={"7": 0.5})
    assert WindowWork.of(done, 7) == WindowWork(10.5, 40, 0.5)
    assert WindowWork.of(done, 7, by_event=True).tokens == 50


def test_what_is_added_is_beyond_the_same_share_of_the_other() -> None:
    assert FirstTokenTimes(0.75, 2.5).beyond(FirstTokenTimes(0.5, 1.5)) == FirstTokenTimes(
        0.25, 1.0
    )


def test_reached_is_at_most_what_was_asked_for() -> None:
    assert verdict("x", 60e-6, 60e-6, 1e6, "us") == "x: 60.00 us, at most 60 asked for: reached"
    assert verdict("x", 61e-6, 60e-6, 1e6, "us").endswith("not reached")


def test_a_scripted_stream_says_what_a_node_would() -> None:
    from api.generated import decode_event
    from api.generator import TokenEvent

    stream = Stream(RequestId("r"), (5, 6), wanted=3)
    (first, second), more = stream.more(2)
    assert more
    assert [*decode_event(first[:-2]), *decode_event(second[:-2])] == [
        TokenEvent((5,)),
        TokenEvent((6,)),
    ]
    (last,), more = stream.more(2)
    assert not more
    _, token = last.split(b"\n\n")[:2]
    assert list(decode_event(token)) == [TokenEvent((5,), FinishReason.LENGTH)]


PATIENCE_S = 10.0
WHOLE = b'{"sampling_params": {"max_tokens": 4}}'
CALL = b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(WHOLE), WHOLE)


class Told(ScriptedConnection):
    """Says when its client has left."""

    def __init__(self, stage: ScriptedNodes) -> None:
        super().__init__(stage)
        self.lost = asyncio.get_running_loop().create_future()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self.lost.set_result(None)


async def left_early() -> tuple[ScriptedNodes, "asyncio.Task[None]", bytes]:
    """A client leaves before its first token, while another is answered to its end."""
    loop, stage = asyncio.get_running_loop(), ScriptedNodes((5,), Script(step_s=0.001))
    doors = list[Told]()

    def open_door() -> Told:
        doors.append(Told(stage))
        return doors[-1]

    async with await loop.create_server(open_door, HERE, 0) as server:
        place = server.sockets[0].getsockname()
        (_, leaves), (reader, stays) = [await asyncio.open_connection(*place) for _ in "12"]
        running = loop.create_task(stage.run())
        leaves.transport.abort()
        await doors[0].lost
        doors[0]._whole(RequestId("r"), (5,), 2)  # its time had been set before
        stays.write(CALL)
        said = await reader.readuntil(b"0\r\n\r\n")
        stays.close()
        await doors[1].lost
    return stage, running, said


def test_a_client_that_leaves_ends_only_its_own_stream() -> None:
    async def leave() -> None:
        async with asyncio.timeout(PATIENCE_S):
            stage, running, said = await left_early()
        assert b"[DONE]" in said
        assert not stage.streams
        assert not running.done()
        running.cancel()

    uvloop.run(leave())


@pytest.mark.parametrize(
    ("cores", "measured", "others"),
    [({0}, {0}, {0}), ({0, 1}, {1}, {0}), ({2, 5, 9}, {9}, {2, 5})],
)
def test_what_is_measured_has_a_core_for_itself(
    monkeypatch: pytest.MonkeyPatch, cores: set[int], measured: set[int], others: set[int]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    assert CoreSets.apart() == CoreSets(frozenset(measured), frozenset(others))
    assert CoreSets.shared() == CoreSets(frozenset(cores), frozenset(cores))


def test_processes_stay_where_they_were_started() -> None:
    every = os.sched_getaffinity(0)
    one = frozenset({min(every)})
    tell = "import os; print(*os.sched_getaffinity(0))"
    with started_on(one):
        said = subprocess.run([sys.executable, "-c", tell], capture_output=True, check=True)
    assert {int(core) for core in said.stdout.split()} == one
    assert os.sched_getaffinity(0) == every
