"""A cluster of real processes, to be asked, looked into, and hurt."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bench.cpu import children
from deploy.config import UpConfig
from deploy.supervisor import SupervisedProcess
from deploy.up import LocalCluster
from discovery.registration import Role
from tests.fakes.lines import PATIENCE_S, line_with

BACK_S = 10.0  # a lease that nobody ends lasts for thrice as long
MODEL = "tiny"
READY = re.compile(r"ready at (?P<url>http://\S+)")
USED = "pdserve_kv_blocks_used"
MOVED = "pdserve_kv_transfer_bytes_total"


@dataclass
class Running:
    """One cluster; `lines` is all that its processes have printed."""

    cluster: LocalCluster
    url: str
    session: aiohttp.ClientSession
    lines: list[str] = field(default_factory=list)

    async def complete(self, prompt: Sequence[int], **fields: object) -> dict[str, Any]:
        """An unstreamed answer of /v1/completions, with its token ids and stage times."""
        return await self.ask(self.url, prompt, **fields)

    async def ask(self, url: str, prompt: Sequence[int], **fields: object) -> dict[str, Any]:
        """The same of any door."""
        body = {
            "model": MODEL,
            "prompt": list(prompt),
            "temperature": 0,
            "return_token_ids": True,
            "ignore_eos": True,
            "pdserve": {"timings": True},
            **fields,
        }
        async with self.session.post(f"{url}/v1/completions", json=body) as answer:
            said: dict[str, Any] = await answer.json()
            assert answer.status == 200, said
            return said

    async def nodes(self) -> list[dict[str, Any]]:
        """What the proxy knows of each node."""
        async with self.session.get(f"{self.url}/status") as answer:
            found: list[dict[str, Any]] = (await answer.json())["nodes"]
            return found

    async def metric(self, name: str) -> dict[str, float]:
        """One metric of every node that lives, by address; a dead one is known for a while."""
        found = dict[str, float]()
        for node in await self.nodes():
            address = node["http_address"]
            with suppress(aiohttp.ClientConnectionError):
                async with self.session.get(f"http://{address}/metrics") as answer:
                    found[address] = read_metric(await answer.text(), name)
        return found

    async def blocks_come_back(self, within_s: float = BACK_S) -> None:
        """Fails if any living node still holds blocks after that time."""
        used: dict[str, float] = {}
        try:
            async with asyncio.timeout(within_s):
                while not used or any(used.values()):
                    used = await self.metric(USED)
        except TimeoutError:
            raise AssertionError(f"blocks in use after {within_s} s: {used}") from None

    async def layouts(self) -> dict[str, dict[str, Any]]:
        """The KV layout of every node, by role; one node of each."""
        found = dict[str, dict[str, Any]]()
        for node in await self.nodes():
            async with self.session.get(f"http://{node['http_address']}/server_info") as answer:
                found[node["role"]] = (await answer.json())["kv_layout"]
        return found

    async def split_is_unsplit(self, prompts: Sequence[Sequence[int]], tokens: int) -> None:
        """Every prompt's KV travels, and the answers are those of the decode node alone."""
        [alone] = [node for node in await self.nodes() if node["role"] == "decode"]
        door = f"http://{alone['http_address']}"
        split = await asyncio.gather(
            *(self.complete(asked, max_tokens=tokens) for asked in prompts)
        )
        whole = await asyncio.gather(
            *(self.ask(door, asked, max_tokens=tokens, cache_salt="whole") for asked in prompts)
        )
        assert [tokens_of(one) for one in split] == [tokens_of(one) for one in whole]
        assert all(stage(one, "transfer")["num_bytes"] for one in split)

    def door(self, name: str) -> int:
        """The pid of a process that `up` started."""
        process = self.child(name).process
        assert process is not None
        return process.pid

    def engine(self, name: str) -> int:
        """The pid of a node's engine process."""
        return next(iter(children(self.door(name))))

    def child(self, name: str) -> SupervisedProcess:
        every = (self.cluster.proxy, *self.cluster.nodes)
        return next(child for child in every if child.name == name)


@dataclass
class Unlike(LocalCluster):
    """A cluster whose decode nodes have other values for some options, and whose nodes have
    some options `more`.
    """

    decode_options: Mapping[str, str] = field(default_factory=dict)
    more: Sequence[str] = ()

    def _node(self, role: Role, index: int) -> Sequence[str]:
        words = list(super()._node(role, index))
        for name, value in self.decode_options.items() if role is Role.DECODE else ():
            (given,) = [word for word in words if word.startswith(f"{name}=")]
            words[words.index(given)] = f"{name}={value}"
        return [*words, *self.more]


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncGenerator[Running]:  # noqa: ANN401
    """Up when entered, gone when left; every port is one that the system picked.

    `decode_options` are of decode nodes alone, `node_options` of all nodes.
    """
    more: Sequence[str] = settings.pop("node_options", ())
    decode_options: Mapping[str, str] = settings.pop("decode_options", {})
    config = UpConfig(
        model=str(folder),
        served_model_name=(MODEL,),
        port=0,
        **{"dtype": "float32", "threads": 1, "drain_timeout_s": 5.0, **settings},
    )
    lines = list[str]()
    show = lines.append
    cluster = Unlike(config, show=show, decode_options=decode_options, more=more)
    task = asyncio.create_task(cluster.run())
    try:
        either: list[asyncio.Future[Any]] = [task, cluster.ready]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
        assert cluster.ready.done(), "\n".join(lines)
        async with aiohttp.ClientSession() as session:
            yield Running(cluster, cluster.ready.result(), session, lines)
    finally:
        cluster.stop()
        await task


@asynccontextmanager
async def launched(
    folder: Path, *more: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """`pdserve up` as an operator starts it, once it says that it is ready."""
    command = [*("up", "--port", "0", "--model", str(folder)), "--drain-timeout-s", "5", *more]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "from deploy.cli import main; main()", *command),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process, (await line_with(process.stdout, READY))["url"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def read_metric(text: str, name: str) -> float:
    """The only sample of that name."""
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return next(sample.value for sample in samples if sample.name == name)


def stage(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """One stage of an answer."""
    stages: list[dict[str, Any]] = answer["pdserve"]["stages"]
    return next(one for one in stages if one["stage"] == name)


def tokens_of(answer: dict[str, Any]) -> list[int]:
    """The token ids of an answer's first choice."""
    tokens: list[int] = answer["choices"][0]["token_ids"]
    return tokens


async def gone(pid: int, within_s: float = PATIENCE_S) -> None:
    """Fails if the process is still there after that time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(handle, ended.set)
    try:
        await asyncio.wait_for(ended.wait(), within_s)
    finally:
        loop.remove_reader(handle)
        os.close(handle)
