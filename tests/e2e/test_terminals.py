"""Who started a process may close the terminal, press Ctrl-C, or read its log no longer."""

import asyncio
import fcntl
import json
import os
import pty
import signal
import socket
import sys
import termios
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.e2e.cluster import MODEL, READY, Running, gone, running, tokens_of
from tests.e2e.streams import streamed
from tests.fakes.driver import prompt

LONG = 440
PATIENCE_S = 120.0  # kernels may have to be compiled first
START = "from deploy.cli import main; main()"


@pytest.fixture(autouse=True)
def no_nohup() -> Iterator[None]:
    """What these tests ignore would be ignored by all that they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_a_terminal_tells_all_processes_of_a_node_and_its_door_drains(
    tiny: Path, number: signal.Signals
) -> None:
    """Ctrl-C, or the window's end, goes to the engine process as well."""
    async with amid_an_answer(tiny) as (cluster, streaming, undisturbed):
        door = cluster.door("decode-0")
        os.killpg(door, number)
        assert await streaming == undisturbed
        await gone(door, within_s=PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while not any(f"stopping by {number.name}" in line for line in cluster.lines):
                await cluster.nodes()  # lines come after the end of who has said them
        assert not [line for line in cluster.lines if "Traceback" in line]


@pytest.mark.parametrize("whom", ["its engine process", "all at once"])
async def test_sigterm_to_any_process_of_a_node_has_its_door_drain(
    tiny: Path, whom: str
) -> None:
    """A service manager tells all of a service's processes."""
    async with amid_an_answer(tiny) as (cluster, streaming, undisturbed):
        door = cluster.door("decode-0")
        if whom == "all at once":
            os.killpg(door, signal.SIGTERM)
        else:
            os.kill(cluster.engine("decode-0"), signal.SIGTERM)
        assert await streaming == undisturbed
        await gone(door, within_s=PATIENCE_S)


async def test_a_terminal_that_is_closed_ends_a_cluster_behind_its_streams(tiny: Path) -> None:
    command = [*("up", "--port", "0", "--model", str(tiny)), "--served-model-name", MODEL]
    async with on_a_terminal(command) as (process, master), aiohttp.ClientSession() as session:
        url = await ready(master)
        begun = asyncio.Event()
        undisturbed = await streamed(session, url, prompt(40), LONG, asyncio.Event())
        streaming = asyncio.create_task(streamed(session, url, prompt(40), LONG, begun))
        await begun.wait()
        os.close(master)
        os.kill(process.pid, signal.SIGHUP)  # as a shell does besides
        assert await streaming == undisturbed
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0


async def test_a_node_whose_log_nobody_reads_loses_lines_and_works(tiny: Path) -> None:
    """As behind `pdserve up` that stands still; here from the first line on."""
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    fill(writer)
    command = ["decode", "--model", str(tiny), "--port", "0", "--kv-port", "0"]
    with ours, theirs:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", START, *command, "--served-model-name", MODEL),
            *("--supervisor-fd", str(theirs.fileno()), "--log-level", "debug"),
            *("--drain-timeout-s", "5", "--proxy", "127.0.0.1:1"),
            stdout=writer,
            stderr=writer,
            pass_fds=(theirs.fileno(),),
        )
        try:
            ours.setblocking(False)
            async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
                said = await asyncio.get_running_loop().sock_recv(ours, 1 << 16)
                url = f"http://{json.loads(said)['http_address']}"
                assert (
                    len(await streamed(session, url, prompt(40), LONG, asyncio.Event())) == LONG
                )
                process.terminate()
                assert await process.wait() == 0
        finally:
            os.close(reader)
            os.close(writer)
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@asynccontextmanager
async def amid_an_answer(
    folder: Path,
) -> AsyncGenerator[tuple[Running, asyncio.Task[list[int]], list[int]]]:
    """A node with time to drain; the answer that it streams, and the same one undisturbed."""
    settings: dict[str, Any] = {"drain_timeout_s": PATIENCE_S, "kv_connector": "tcp"}
    async with running(folder, prefill=0, **settings) as cluster:
        (node,) = await cluster.nodes()
        url, begun = f"http://{node['http_address']}", asyncio.Event()
        undisturbed = tokens_of(await cluster.ask(url, prompt(40), max_tokens=LONG))
        streaming = asyncio.create_task(streamed(cluster.session, url, prompt(40), LONG, begun))
        await begun.wait()
        yield cluster, streaming, undisturbed


def fill(writer: int) -> None:
    """Until the pipe has no room; whoever writes then waits, as nobody reads."""
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)


@asynccontextmanager
async def on_a_terminal(
    command: Sequence[str],
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, int]]:
    """A session of its own, as in a window; with the window's side of the terminal."""
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", START, *command),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(slave)
    try:
        yield process, master
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def ready(master: int) -> str:
    """The URL, once it is said."""
    said = b""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := READY.search(said.decode(errors="replace"))):
            said += await asyncio.to_thread(os.read, master, 1 << 16)
    return found["url"]
