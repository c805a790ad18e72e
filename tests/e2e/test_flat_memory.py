"""Floods leave the memory of a proxy as it was, with whichever allocator it runs."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.hostile_http import connect
from tests.fakes.lines import line_with
from tests.integration.test_hostile_clients import REFUSED

MIB = 1 << 20
PATIENCE_S = 240
CALM, AT_ONCE, SLOW = 4, 8, 100
STEP = 4 * MIB  # a flood brings thirty times as much
HIGHEST = 256 * MIB  # what all bodies may hold at once
READY = re.compile(r"ready on http://(?P<address>[^ ]+) ")
COMMAND = (
    *("-c", "from deploy.cli import main; main()", "proxy"),
    *("--port", "0", "--discovery-port", "0", "--allocator"),
)


@asynccontextmanager
async def proxy(allocator: str) -> AsyncGenerator[tuple[int, str]]:
    """Its pid and its address; its log is read, so that it never waits."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *COMMAND, allocator, stderr=pipe
    )
    assert process.stderr
    try:
        ready = await line_with(process.stderr, READY)
        reading = asyncio.create_task(process.stderr.read())
        yield process.pid, ready["address"]
        process.terminate()
        assert b"Traceback" not in await reading
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def memory(pid: int, field: str) -> int:
    """In bytes: `VmRSS` now, `VmHWM` at most so far."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) << 10


async def flood(address: str) -> None:
    """Each kind from several at once, among clients that never end their heads."""
    slow = [await connect(address) for _ in range(SLOW)]
    for client in slow:
        await client.send(b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 4000)
    for what, (status, sent) in REFUSED.items():
        answers = await asyncio.gather(*(refused(address, sent) for _ in range(AT_ONCE)))
        assert set(answers) == {status}, what
    for client in slow:
        client.writer.write_eof()
        await client.rest()
        client.close()


async def refused(address: str, sent: bytes) -> int | None:
    client = await connect(address)
    sending = asyncio.create_task(client.send(sent))
    try:
        return await client.status()
    finally:
        await sending
        client.close()


@pytest.mark.parametrize("allocator", ["auto", "system"])
async def test_floods_leave_no_memory_behind(allocator: str) -> None:
    async with asyncio.timeout(PATIENCE_S), proxy(allocator) as (pid, address):
        await flood(address)  # what is there once is there for good
        before = most = memory(pid, "VmRSS")
        calm = 0
        while calm < CALM:  # allocators keep what they had, and come to an end of that
            await flood(address)
            now = memory(pid, "VmRSS")
            calm, most = (calm + 1, most) if now < most + STEP else (0, now)
            assert memory(pid, "VmHWM") - before < HIGHEST
