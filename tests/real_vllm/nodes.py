"""Processes of vLLM, and a proxy of ours before them."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.e2e.cluster import MODEL
from tests.fakes.ports import HERE, free_ports
from tests.fakes.waiting import is_seen

PATIENCE_S = 300.0
CONTEXT = 1024
OK = 200
KEY = "key of this run"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": HERE,
    "UCX_TLS": "tcp,shm,self,cma",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
PROXY = "from deploy.cli import main; main()"


@dataclass(frozen=True)
class Vllm:
    """How vLLM's nodes are started: its program, the model, more flags, where they log."""

    program: Path
    model: Path
    flags: tuple[str, ...]
    logs: Path
    session: aiohttp.ClientSession

    @asynccontextmanager
    async def node(self, name: str) -> AsyncGenerator["VllmNode"]:
        """A node that serves; it is killed at the end, if it still lives."""
        port, side = free_ports(2)
        command = [*("serve", str(self.model), "--served-model-name", MODEL, "--host", HERE)]
        command += [*("--port", str(port), "--dtype", "float32", "--enforce-eager")]
        command += [*("--max-model-len", str(CONTEXT), "--block-size", "32")]
        command += [*("--kv-transfer-config", json.dumps(TRANSFER), *self.flags)]
        with (self.logs / f"vllm-{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *(str(self.program), *command),
                env={**os.environ, **ENVIRONMENT, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        node = VllmNode(process, f"{HERE}:{port}")
        try:
            await serving(process, node.address, self.session)
            yield node
        finally:
            await node.kill()


@dataclass(frozen=True)
class VllmNode:
    """One node of vLLM, in a process group of its own."""

    process: asyncio.subprocess.Process
    address: str

    async def running(self, session: aiohttp.ClientSession) -> int:
        """How many requests it runs."""
        async with session.get(f"http://{self.address}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        [count] = [one for one in lines if one.startswith("vllm:num_requests_running{")]
        return int(float(count.split()[-1]))

    async def kill(self) -> None:
        """Kill it with all its processes."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()


@dataclass(frozen=True)
class Proxy:
    """A proxy of ours."""

    url: str
    session: aiohttp.ClientSession

    async def add(self, role: str, node: VllmNode) -> None:
        """Let it know a node, as an operator does."""
        body, key = {"type": role, "instance": node.address}, {"X-API-Key": KEY}
        async with self.session.post(
            f"{self.url}/instances/add", json=body, headers=key
        ) as said:
            assert said.status == OK, await said.text()


@asynccontextmanager
async def proxy(
    model: Path, logs: Path, session: aiohttp.ClientSession
) -> AsyncGenerator[Proxy]:
    """A proxy that knows no nodes yet."""
    [port] = free_ports(1)
    command = [*("proxy", "--host", HERE, "--port", str(port), "--discovery-port", "0")]
    command += ["--tokenizer", str(model), "--admin-api-key", KEY]
    with (logs / "proxy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROXY, *command), stdout=log, stderr=log
        )
    try:
        await serving(process, f"{HERE}:{port}", session)
        yield Proxy(f"http://{HERE}:{port}", session)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def serving(
    process: asyncio.subprocess.Process, address: str, session: aiohttp.ClientSession
) -> None:
    """Wait until it answers; a proxy says then that it has no nodes."""

    async def answers() -> bool:
        assert process.returncode is None, f"it ended with status {process.returncode}"
        with suppress(aiohttp.ClientConnectionError):
            async with session.get(f"http://{address}/health"):
                return True
        return False

    assert await is_seen(answers, PATIENCE_S), f"{address} did not answer"
