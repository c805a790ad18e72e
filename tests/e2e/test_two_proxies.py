"""Two whole proxies on one set of nodes: one that dies takes its own connections along only."""

import asyncio
import os
import random
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from deploy.supervisor import SupervisedProcess
from engine.request import Sampling
from tests.e2e.cluster import MODEL, USED, read_metric
from tests.fakes.driver import prompt
from tests.fakes.waiting import LOOK_AGAIN_S, comes_true, is_seen
from tests.soak.clients import Clients
from tests.soak.questions import Question, answers

PATIENCE_S = 120.0  # kernels may have to be compiled first
STREAMS, ANSWER = 4, 400
BACK_S = 10.0  # a lease that nobody ends lasts for thrice as long
SAMPLING = Sampling(max_tokens=ANSWER, ignore_eos=True)
ASKED = [
    Question(number, prompt(20 + number, number), SAMPLING, 1) for number in range(STREAMS)
]
ADMIN = {"X-API-Key": "boss"}


@dataclass
class Machines:
    """Processes that know each other by address only."""

    session: aiohttp.ClientSession
    children: dict[str, SupervisedProcess] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def address(self, name: str) -> str:
        facts = self.children[name].facts
        assert facts
        return facts["http_address"]

    def show(self, name: str, line: str) -> None:
        self.lines.append(f"{name} | {line}")

    async def states(self, proxy: str) -> dict[str, str]:
        """What a proxy knows of its nodes."""
        async with self.session.get(f"http://{self.address(proxy)}/status") as said:
            known = (await said.json())["nodes"]
            return {node["http_address"]: node["state"] for node in known}

    async def used(self) -> float:
        """Blocks that are held on any node."""
        held = 0.0
        for name in ("prefill", "decode"):
            async with self.session.get(f"http://{self.address(name)}/metrics") as page:
                held += read_metric(await page.text(), USED)
        return held

    def clients(self, proxy: str) -> Clients:
        seats = asyncio.Semaphore(STREAMS)
        url = f"http://{self.address(proxy)}"
        return Clients(self.session, url, random.Random(0), seats)


@asynccontextmanager
async def machines(folder: Path) -> AsyncGenerator[Machines]:
    """Two proxies, and a node of each kind that registers with both."""
    async with AsyncExitStack() as stack:
        found = Machines(await stack.enter_async_context(aiohttp.ClientSession()))
        proxies, where = ("one", "two"), list[str]()
        for name in proxies:
            words = ["--port", "0", "--discovery-port", "0", "--admin-api-key", "boss"]
            facts = await stack.enter_async_context(running(found, name, "proxy", words))
            where += ["--proxy", facts["discovery_address"]]
        model = ["--model", str(folder), "--served-model-name", MODEL, "--dtype", "float32"]
        for role in ("prefill", "decode"):
            words = [*model, *where, "--port", "0", "--kv-port", "0", "--threads", "1"]
            await stack.enter_async_context(running(found, role, f"{role}_node", words))
        for name in proxies:
            assert await is_seen(partial(has_both, found, name), PATIENCE_S)
        yield found


async def has_both(found: Machines, proxy: str) -> bool:
    return list((await found.states(proxy)).values()) == ["ready"] * 2


@asynccontextmanager
async def running(
    found: Machines, name: str, module: str, words: Sequence[str]
) -> AsyncGenerator[Any]:
    command = [sys.executable, "-m", module, *words]
    child = SupervisedProcess(name, lambda: command, dict(os.environ), found.show, PATIENCE_S)
    found.children[name] = child
    task = asyncio.create_task(child.run())
    either: set[asyncio.Future[Any]] = {task, child.ready}
    try:
        await asyncio.wait(either, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        assert child.ready.done(), "\n".join(found.lines)
        yield child.ready.result()
    finally:
        child.kill()
        await task


async def test_a_proxy_that_dies_takes_neither_nodes_nor_the_other_proxy_along(
    tiny: Path,
) -> None:
    expected = [one[0] for one in answers(tiny, ASKED)]
    async with machines(tiny) as found:
        cut, whole = found.clients("one"), found.clients("two")
        reading = [
            asyncio.create_task(clients.ask(one, leaves=False))
            for clients in (cut, whole)
            for one in ASKED
        ]
        told = cut.told.values()
        begun = lambda: len(told) == STREAMS and all(one.choices[0] for one in told)  # noqa: E731
        await comes_true(begun, look_s=LOOK_AGAIN_S)
        process = found.children["one"].process
        assert process
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.gather(*reading)
        assert [whole.told[one.number].choices[0] for one in ASKED] == expected
        assert not [one.failure for one in whole.told.values() if one.failure]
        for said, all_of_it in zip(
            (cut.told[one.number] for one in ASKED), expected, strict=True
        ):
            assert said.failure or said.choices[0] == all_of_it
            assert said.choices[0] == all_of_it[: len(said.choices[0])]
        assert await is_seen(lambda: nothing_held(found), BACK_S)
        later = found.clients("two")
        await later.ask(ASKED[0], leaves=False)
        assert later.told[0].choices == [expected[0]]
        assert set((await found.states("two")).values()) == {"ready"}
        assert not [line for line in found.lines if "Traceback" in line]


async def nothing_held(found: Machines) -> bool:
    return await found.used() == 0


async def test_a_drain_at_one_proxy_is_known_to_the_other(tiny: Path) -> None:
    """The node tells all of them; an operator needs one call, and either may take it back."""
    async with machines(tiny) as found:
        node = found.address("prefill")

        async def order(proxy: str, what: str) -> int:
            url = f"http://{found.address(proxy)}/instances/{node}/{what}"
            async with found.session.post(url, headers=ADMIN) as said:
                return said.status

        for proxy, other, what, state in (
            ("one", "two", "drain", "draining"),
            ("two", "one", "undrain", "ready"),
        ):

            async def known(at: str = other, to_be: str = state) -> bool:
                return (await found.states(at))[node] == to_be

            assert await order(proxy, what) == 200
            assert await is_seen(known, BACK_S)
