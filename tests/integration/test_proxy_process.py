"""The proxy as a process: it hears nodes, and stops without cutting anybody off."""

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from discovery.announcer import Announcer
from discovery.registration import Registration, Role
from tests.fakes.hostile_http import connect
from tests.fakes.raw_http import answer, raw_server
from tests.fakes.waiting import is_seen

PATIENCE_S = 120  # with a process that starts, and all that it does then
NOTICE_S = 5.0  # for two calls
A_WHILE_S = 0.3  # an impatient server has hung up by then
HERE = "127.0.0.1"
START = """
import json, sys
from proxy.config import ProxyConfig
from proxy.main import run
run(ProxyConfig(port=0, discovery_port=0, admin_api_key="key", **json.loads(sys.argv[1])))
"""
START_WORKERS = START.replace("proxy.main", "deploy.workers")
LOAD = """
import sys, threading, types
def load(folder):
    print("loading", flush=True)
    threading.Event().wait(600)
library = sys.modules["transformers.tokenization_utils_tokenizers"] = types.ModuleType("slow")
library.PreTrainedTokenizerFast = types.SimpleNamespace(from_pretrained=load)
from proxy.config import ProxyConfig
from proxy.main import run
run(ProxyConfig(port=0, discovery_port=0, tokenizer=sys.argv[1]))
"""
READY = re.compile(
    r"ready on https?://(?P<address>[^ ]+) (with \d+ workers )?"
    r"\(nodes register at [^ ]+:(?P<port>\d+)\)"
)


@dataclass
class Running:
    process: asyncio.subprocess.Process
    stderr: asyncio.StreamReader
    address: str
    discovery: str

    async def line(self, text: str) -> str:
        """The next line of the log with this in it."""
        async for line in self.stderr:
            if text in line.decode():
                return line.decode()
        raise AssertionError(f"no {text}")


@asynccontextmanager
async def running(
    *, workers: int = 1, **settings: str | float | list[str]
) -> AsyncGenerator[Running]:
    start, said = START, dict[str, object](settings)
    if workers > 1:
        start, said["workers"] = START_WORKERS, workers
    command = [sys.executable, "-c", start, json.dumps(said)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr
    proxy = Running(process, process.stderr, "", "")
    try:
        async with asyncio.timeout(PATIENCE_S):
            last = "ready on" if workers == 1 else f"with {workers} workers"
            ready = READY.search(await proxy.line(last))
            assert ready
            proxy.address = ready["address"]
            proxy.discovery = f"{HERE}:{ready['port']}"
            yield proxy
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_it_hears_nodes_and_finishes_what_runs_before_it_ends() -> None:
    gate, found = asyncio.Event(), answer(200, {"data": [{"id": "m"}]})
    decode = Registration(Role.DECODE, "h:1", "h:2", "d0")
    async with (
        raw_server([gate, answer(404, {})], [found]) as node,
        aiohttp.ClientSession() as session,
        running() as proxy,
    ):
        with closing(Announcer.connect([proxy.discovery], lambda: decode)) as announcer:
            announcer.announce_now()
            assert "decode node h:1 (node_id d0" in await proxy.line("joined")
        async with session.get(f"http://{proxy.address}/health") as health:
            assert health.status == 200
        running_call = asyncio.create_task(add(session, proxy, node.address))
        await node.asked.wait()
        proxy.process.terminate()
        await proxy.line("stopping")
        asyncio.get_running_loop().call_later(A_WHILE_S, gate.set)
        assert await running_call == 200
        assert await proxy.process.wait() == 0


async def test_the_page_of_several_workers_has_what_was_refused_at_their_port() -> None:
    async with aiohttp.ClientSession() as session, running(workers=2) as proxy:
        host, _, port = proxy.discovery.rpartition(":")
        (await asyncio.open_connection(host, int(port)))[1].close()

        async def counted() -> bool:
            async with session.get(f"http://{proxy.address}/metrics") as page:
                return 'registrations_refused_total{reason="wordless"} 1.0' in await page.text()

        assert await is_seen(counted, PATIENCE_S)
        proxy.process.terminate()


async def test_load_balancers_hear_of_its_end_before_clients_are_refused() -> None:
    async with aiohttp.ClientSession() as session, running(drain_notice_s=NOTICE_S) as proxy:
        assert await got(session, proxy, "/health") == (503, "unavailable")
        proxy.process.terminate()
        await proxy.line("stopping")
        assert await got(session, proxy, "/health") == (503, "stopping")
        assert await got(session, proxy, "/status") == (200, "unavailable")  # as ever
        assert await proxy.process.wait() == 0
        with pytest.raises(aiohttp.ClientConnectorError):
            await got(session, proxy, "/health")


async def test_pages_of_an_allowed_origin_can_read_what_app_and_server_say() -> None:
    origin = "https://chat.example"
    async with running(allowed_origins=[origin], drain_notice_s=NOTICE_S) as proxy:
        said = f"\r\naccess-control-allow-origin: {origin}\r\n".encode()
        proxy.process.terminate()
        await proxy.line("stopping")
        for line, status in ((b"GET /health", b"503"), (b"POST /v1/completions", b"413")):
            raw = await connect(proxy.address)
            size = 0 if status == b"503" else 1 << 40
            await raw.send(b"%b HTTP/1.1\r\nContent-Length: %d\r\n" % (line, size))
            await raw.send(b"Host: a\r\nOrigin: %b\r\n\r\n" % origin.encode())
            told = await raw.rest()
            raw.close()
            assert told.startswith(b"HTTP/1.1 " + status)
            assert said in told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_while_it_loads_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    """Here with a library that never comes to an end."""
    (tmp_path / "tokenizer.json").touch()
    command = [sys.executable, "-c", LOAD, str(tmp_path)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout
    try:
        async with asyncio.timeout(PATIENCE_S):
            assert await process.stdout.readline() == b"loading\n"
            process.send_signal(number)
            assert await process.wait() == -number
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def got(session: aiohttp.ClientSession, proxy: Running, path: str) -> tuple[int, str]:
    async with session.get(f"http://{proxy.address}{path}") as answered:
        return answered.status, (await answered.json())["status"]


async def add(session: aiohttp.ClientSession, proxy: Running, instance: str) -> int:
    url, body = (
        f"http://{proxy.address}/instances/add",
        {"type": "decode", "instance": instance},
    )
    async with session.post(url, json=body, headers={"X-API-Key": "key"}) as answered:
        return answered.status
