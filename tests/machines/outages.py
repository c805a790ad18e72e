"""The run: a proxy and two nodes of each kind, each on a machine of its own, and clients."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp

from tests.chaos.deeds import NotBack, Operator, goes_on, hurt_in_turn
from tests.e2e.cluster import MOVED, read_metric
from tests.fakes.waiting import is_seen
from tests.machines.box import Box, node_box, proxy_box
from tests.machines.lan import Lan, lan
from tests.soak.clients import Clients
from tests.soak.questions import EngineJudge, answers, questions
from tests.soak.verdict import Verdict, blocks_used

PROXY = "10.77.0.2"
PREFILL, DECODE = ("10.77.0.11", "10.77.0.12"), ("10.77.0.21", "10.77.0.22")
PORTS = {"prefill": 8100, "decode": 8200}
PAUSE_S = (0.5, 4.0)
SHORT_S = (0.5, 3.0)  # most notice nothing but a pause
LONG_S = (7.0, 12.0)  # nobody waits so long
PROXY_S = (0.5, 2.0)
PROXY_PAUSE_S = (8.0, 20.0)
BACK_S = 10.0
WELL_S = 30.0  # a machine that is busy with all else
FOUND_S = 8.0  # a proxy's machine that is there again has to have its nodes by then
UNLIMITED = 1 << 20
Deed = Callable[[Box], Awaitable[None]]


@dataclass(slots=True)
class Site:
    """All machines; `kinds` are the nodes by role."""

    lan: Lan
    proxy: Box
    kinds: Mapping[str, Sequence[Box]]
    operator: Operator

    @property
    def doors(self) -> list[str]:
        """The HTTP addresses of all nodes."""
        return [door(role, box) for role, kind in self.kinds.items() for box in kind]

    async def well(self, doors: Collection[str], within_s: float) -> None:
        """The proxy knows these nodes as ready; raises NotBack."""

        async def holds() -> bool:
            nodes = await self.operator.nodes()
            ready = {at for at, node in nodes.items() if node["state"] == "ready"}
            return ready.issuperset(doors)

        if not await is_seen(holds, within_s):
            nodes = await self.operator.nodes()
            raise NotBack(f"{doors} are not well after {within_s:g} s: {nodes}")


@dataclass(slots=True)
class Hands:
    """What is done to machines and cables, while `over` is not set; `done` counts it."""

    site: Site
    chance: random.Random
    over: asyncio.Event = field(default_factory=asyncio.Event)
    done: Counter[str] = field(default_factory=Counter)

    async def hurt_one_of(self, role: str) -> None:
        """One after another, each until it is well, so that one of its kind always is."""
        deeds: Sequence[Deed] = (self._short, self._long, self._reboot, self._part)

        async def well(box: Box) -> None:
            await self.site.well([door(role, box)], WELL_S)

        pause = partial(goes_on, self.over, self.chance, PAUSE_S)
        await hurt_in_turn(self.site.kinds[role], deeds, well, pause, self.chance)

    async def unplug_proxy(self) -> None:
        """Another hand: clients and nodes notice a pause."""
        while await goes_on(self.over, self.chance, PROXY_PAUSE_S):
            await self._unplugged(self.site.proxy, PROXY_S)

    async def _short(self, box: Box) -> None:
        await self._unplugged(box, SHORT_S)

    async def _long(self, box: Box) -> None:
        await self._unplugged(box, LONG_S)

    async def _unplugged(self, box: Box, seconds: tuple[float, float]) -> None:
        self.done[f"{'long ' if seconds == LONG_S else ''}unplugged {box.name}"] += 1
        await self.site.lan.unplug(box.machine)
        await asyncio.sleep(self.chance.uniform(*seconds))
        await self.site.lan.plug(box.machine)

    async def _reboot(self, box: Box) -> None:
        self.done[f"power off {box.name}"] += 1
        await box.power_off()
        await box.power_on()

    async def _part(self, box: Box) -> None:
        """It and one of the other kind do not reach each other; the proxy reaches both."""
        others = [kind for kind in self.site.kinds.values() if box not in kind]
        other = self.chance.choice([one for kind in others for one in kind])
        self.done[f"parted {box.name} and {other.name}"] += 1
        await self.site.lan.part(box.address, other.address)
        await asyncio.sleep(self.chance.uniform(*LONG_S))
        await self.site.lan.join(box.address, other.address)


@dataclass(slots=True)
class Outages:
    """One run: clients come for `seconds`, `rate` of them in each on average."""

    folder: Path
    seed: int
    seconds: float
    rate: float
    connector: str = "nixl"
    away_s: float = 22.0  # the proxy's machine, at the end
    lines: list[str] = field(default_factory=list)

    async def run(self) -> Verdict:
        """Ask, pull cables, and look at what is left."""
        chance = random.Random(self.seed)
        asked = questions(round(self.seconds * self.rate), chance)
        expected = await asyncio.to_thread(answers, self.folder, asked)
        verdict, begun = Verdict(len(asked)), time.monotonic()
        async with self._site() as site:
            clients = Clients(
                site.operator.session, site.operator.url, chance, asyncio.Semaphore(UNLIMITED)
            )
            hands = Hands(site, random.Random(chance.random()))
            try:
                async with asyncio.TaskGroup() as group:
                    for role in site.kinds:
                        group.create_task(hands.hurt_one_of(role))
                    group.create_task(hands.unplug_proxy())
                    await clients.come(asked, self.rate, clients.ask)
                    hands.over.set()
                await self._look(site, verdict)
                verdict.done["ms until a new proxy knew all nodes"] = await self._proxy_away(
                    site
                )
            except* NotBack as lost:
                verdict.failed += map(repr, lost.exceptions)
            verdict.done += hands.done
        verdict.seconds = time.monotonic() - begun
        verdict.judge(EngineJudge(self.folder, asked, expected), clients.told)
        verdict.read(self.lines)
        return verdict

    @asynccontextmanager
    async def _site(self) -> AsyncGenerator[Site]:
        """All of it is well when entered, and gone when left."""
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            net = await stack.enter_async_context(lan())
            proxy = proxy_box(self.folder, net, self._show, PROXY)
            kinds = {
                role: [
                    node_box(role, self.folder, net, self._show, at, PROXY, self.connector)
                    for at in addresses
                ]
                for role, addresses in (("prefill", PREFILL), ("decode", DECODE))
            }
            site = Site(net, proxy, kinds, Operator(session, f"http://{PROXY}:8000"))
            for box in (proxy, *(box for kind in kinds.values() for box in kind)):
                await box.power_on()
                stack.push_async_callback(box.power_off)
            await site.well(site.doors, WELL_S)
            yield site

    def _show(self, name: str, line: str) -> None:
        self.lines.append(f"{time.time():.2f} {name} | {line}")

    async def _look(self, site: Site, verdict: Verdict) -> None:
        """KV crossed the switch, and nothing is held any more."""
        used: dict[str, float] = {"nobody was asked": 1.0}

        async def is_calm() -> bool:
            nonlocal used
            used = await blocks_used(site.operator.session, site.doors)
            return len(used) == len(site.doors) and not any(used.values())

        if not await is_seen(is_calm, BACK_S):
            verdict.leaked.append(f"after {BACK_S:g} s: {used}")
        moved = 0.0
        for address in site.doors:
            async with site.operator.session.get(f"http://{address}/metrics") as said:
                moved += read_metric(await said.text(), MOVED)
        verdict.done["KiB of KV over cables"] = round(moved / 1024)
        if not moved:
            verdict.failed.append("no KV went from one machine to another")

    async def _proxy_away(self, site: Site) -> int:
        """Its machine is gone for a while; then it starts anew, and its nodes find it soon."""
        await site.proxy.power_off()
        await asyncio.sleep(self.away_s)
        await site.proxy.power_on()
        begun = time.monotonic()
        await site.well(site.doors, FOUND_S)
        return round(1000 * (time.monotonic() - begun))


def door(role: str, box: Box) -> str:
    """A node's HTTP address."""
    return f"{box.address}:{PORTS[role]}"
