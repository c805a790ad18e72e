"""Processes we start are ready when they say so, come back when they die, and end with us."""

import asyncio
import io
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from deploy.config import UpConfig
from deploy.supervisor import LONGEST_LINE, ProcessFailed, SupervisedProcess
from deploy.up import LocalCluster, example
from discovery.lifeline import report_to_starter
from discovery.registration import Registration, Role, State
from discovery.registry import Registry
from proxy.workers.node_counts import report_node_counts
from tests.fakes.waiting import is_seen

SAY_READY = 'import os,sys; os.write(int(sys.argv[-1]), b\'{"http_address": "h:1"}\\n\'); '
FOREVER = "import signal; print('hello', flush=True); signal.pause()"
WAIT_FOR_US = "os.read(int(sys.argv[-1]), 1)"
PATIENCE_S = 10
STUBBORN = "import signal; signal.signal(15, 1); print('hello', flush=True); signal.pause()"


class Screen:
    """What was shown, and a way to wait for it."""

    def __init__(self) -> None:
        self.lines = asyncio.Queue[str]()

    def show(self, name: str, line: str) -> None:
        self.lines.put_nowait(f"{name}: {line}")


def child(code: str, screen: Screen, stop_timeout_s: float = 30) -> SupervisedProcess:
    def arguments() -> Sequence[str]:
        return [sys.executable, "-c", code]

    return SupervisedProcess("one", arguments, dict(os.environ), screen.show, stop_timeout_s)


async def test_its_lines_are_shown_and_its_word_is_heard() -> None:
    screen = Screen()
    one = child(SAY_READY + FOREVER, screen)
    running = asyncio.create_task(one.run())
    assert await one.ready == {"http_address": "h:1"}
    assert await screen.lines.get() == "one: hello"
    await one.stop()
    await running
    assert one.process is not None
    assert one.process.returncode == -signal.SIGTERM


async def test_what_it_goes_on_to_say_is_heard_and_forgotten_with_it() -> None:
    """Lines may come in pieces, and several at once."""
    screen, more = Screen(), r"""b'{"a": "1"}\n{"b"', b': "2"}\n{"a": "3"}\n'"""
    said = f"[os.write(int(sys.argv[-1]), part) for part in ({more})]; "
    one = child(SAY_READY + said + FOREVER, screen)
    running = asyncio.create_task(one.run())
    expected = {"http_address": "h:1", "a": "3", "b": "2"}
    assert await is_seen(lambda: _equal(one.latest, expected), PATIENCE_S)
    assert await one.ready == {"http_address": "h:1"}
    await one.stop()
    await running


async def _equal(one: object, other: object) -> bool:
    return one == other


async def test_who_does_not_read_what_it_is_told_holds_up_nobody() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(100_000):
            report_to_starter(theirs.fileno(), prefill_nodes="1", decode_nodes="1")
        assert ours.recv(10)
        assert theirs.getblocking()


async def test_a_proxy_tells_who_started_it_how_many_nodes_take_work() -> None:
    registry, (ours, theirs) = Registry(), socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        telling = asyncio.create_task(report_node_counts(theirs.fileno(), registry))
        loop, told = asyncio.get_running_loop(), list[Any]()
        for state in (None, State.READY, State.DRAINING):
            if state is not None:
                one = Registration(Role.DECODE, "h:1", "h:2", "d", "m", "f", state=state)
                registry.apply(one, now=time.monotonic())
            told.append(json.loads(await loop.sock_recv(ours, LONGEST_LINE)))
        telling.cancel()
    assert [one["decode_nodes"] for one in told] == ["0", "1", "0"]
    assert {one["prefill_nodes"] for one in told} == {"0"}


async def test_nodes_count_once_every_worker_knows_them() -> None:
    registry, (ours, theirs) = Registry(), socket.socketpair()
    one = Registration(Role.DECODE, "h:1", "h:2", "d", "m", "f", state=State.READY)
    registry.apply(one, now=time.monotonic())
    asked, known = asyncio.Event(), asyncio.Event()

    async def passed_on() -> None:
        asked.set()
        await known.wait()

    with ours, theirs:
        ours.setblocking(False)
        telling = asyncio.create_task(report_node_counts(theirs.fileno(), registry, passed_on))
        async with asyncio.timeout(PATIENCE_S):
            await asked.wait()
        with pytest.raises(BlockingIOError):
            ours.recv(LONGEST_LINE)
        known.set()
        told = json.loads(await asyncio.get_running_loop().sock_recv(ours, LONGEST_LINE))
        telling.cancel()
    assert told["decode_nodes"] == "1"


async def test_a_line_without_an_end_ends_nobody() -> None:
    screen = Screen()
    one = child(f"print('x' * {3 * LONGEST_LINE}, flush=True); " + SAY_READY + FOREVER, screen)
    running = asyncio.create_task(one.run())
    async with asyncio.timeout(PATIENCE_S):
        while await screen.lines.get() != "one: hello":
            assert not running.done()
    await one.stop()
    await running


async def test_lines_are_shown_at_once_where_a_pipe_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipe = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(pipe)))
    LocalCluster(UpConfig()).show("hello")
    assert pipe.getvalue() == b"hello\n"


async def test_what_dies_after_it_was_ready_is_started_again() -> None:
    screen = Screen()
    one = child(SAY_READY + FOREVER, screen)
    running = asyncio.create_task(one.run())
    await screen.lines.get()
    await one.ready
    assert one.process is not None
    first = one.process.pid
    one.process.kill()
    await screen.lines.get()
    assert one.process.pid != first
    await one.stop()
    await running


async def test_what_cannot_be_started_again_now_is_started_later() -> None:
    """The system may lack memory or descriptors for it, or an upgrade replaces the program."""
    screen, program = Screen(), deque([sys.executable, "/nobody", sys.executable])

    def arguments() -> Sequence[str]:
        return [program.popleft(), "-c", SAY_READY + FOREVER]

    one = SupervisedProcess("one", arguments, dict(os.environ), screen.show, PATIENCE_S)
    running = asyncio.create_task(one.run())
    await screen.lines.get()
    assert one.process is not None
    one.process.kill()
    again = asyncio.create_task(screen.lines.get())
    await asyncio.wait(
        {running, again}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
    )
    assert again.done()
    await one.stop()
    await running


async def test_what_cannot_be_started_at_all_is_a_failure() -> None:
    one = SupervisedProcess("one", lambda: ["/nobody"], {}, Screen().show, PATIENCE_S)
    with pytest.raises(ProcessFailed, match=r"^one cannot be started: .*/nobody"):
        await one.run()


async def test_what_dies_before_is_a_failure() -> None:
    one = child("raise SystemExit(7)", Screen())
    with pytest.raises(ProcessFailed, match=r"^one ended with status 7$"):
        await one.run()


async def test_what_nobody_waits_for_any_more_is_not_started_again() -> None:
    one = child("raise SystemExit(3)", Screen())
    one.ready.cancel()  # as the rest of a cluster is given up once one process has failed
    with pytest.raises(ProcessFailed, match="one ended with status 3"):
        await asyncio.wait_for(one.run(), PATIENCE_S)
    assert one.facts is None


async def test_a_failure_has_its_reason() -> None:
    one = child("print('first', flush=True); raise SystemExit('no such model')", Screen())
    with pytest.raises(ProcessFailed, match=r"^one ended with status 1: no such model$"):
        await one.run()


async def test_what_is_stopped_while_it_is_being_started_does_not_stay() -> None:
    one = child(FOREVER, Screen())
    running = asyncio.create_task(one.run())
    await asyncio.sleep(0)  # it is being started, and is nobody yet
    assert one.process is None
    await one.stop()
    await asyncio.wait_for(running, PATIENCE_S)
    assert one.process is not None
    assert one.process.returncode == -signal.SIGKILL


async def test_what_does_not_stop_is_killed() -> None:
    screen = Screen()
    one = child(SAY_READY + STUBBORN, screen, stop_timeout_s=0.1)
    running = asyncio.create_task(one.run())
    await screen.lines.get()
    await one.stop()
    await running
    assert one.process is not None
    assert one.process.returncode == -signal.SIGKILL


async def test_it_notices_that_we_are_gone() -> None:
    """Closing our end of the socket is what the system does when we die."""
    one = child(SAY_READY + WAIT_FOR_US, Screen())
    running = asyncio.create_task(one.run())
    await one.ready
    assert one.process is not None
    ended = asyncio.create_task(one.process.wait())
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert await asyncio.wait_for(ended, PATIENCE_S) == 0


def test_the_line_to_copy_has_a_place_for_the_key_where_one_is_needed() -> None:
    assert "Authorization" not in example(UpConfig())
    assert "'Authorization: Bearer KEY'" in example(UpConfig(api_key=("secret",)))
    assert "secret" not in example(UpConfig(api_key=("secret",)))


def test_the_line_to_copy_is_quoted_for_a_shell() -> None:
    config = UpConfig(served_model_name=("Ann's",), ssl_certfile="/my files/cert.pem")
    words = shlex.split(example(config))
    assert words[1:3] == ["--cacert", "/my files/cert.pem"]
    assert json.loads(words[-1])["model"] == "Ann's"
