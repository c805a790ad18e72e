"""Several proxy processes behind one port: one that dies takes only its connections along."""

import asyncio
import json
import os
import random
import signal
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from bench.cpu import children
from discovery.registration import EXPIRY_S
from engine.request import Sampling
from proxy.workers.hub import PATIENCE_S
from tests.chaos.workers import peers_of
from tests.e2e.cluster import MODEL, Running, gone, running
from tests.fakes.driver import prompt
from tests.fakes.waiting import LOOK_AGAIN_S, comes_true, is_seen
from tests.soak.clients import Clients
from tests.soak.questions import Question, answers

STREAMS, ANSWER = 12, 300
SOON_S, LOOKS = 60.0, 10
HUNG_S = 2.0
MINUTE = 12  # calls of a key
PATIENT: dict[str, Any] = {  # an engine that is stopped here is not to be given up for it
    "first_sign_timeout_s": 120.0,
    "silence_timeout_s": 120.0,
}
IN_FLIGHT, ANSWERED = "pdserve_proxy_requests_in_flight", "pdserve_proxy_answers_total"
until = partial(comes_true, look_s=LOOK_AGAIN_S)
SAMPLING = Sampling(max_tokens=ANSWER, ignore_eos=True)
ASKED = [
    Question(number, prompt(20 + number, number), SAMPLING, 1) for number in range(STREAMS)
]


async def test_a_killed_worker_takes_only_its_own_connections_along(tiny: Path) -> None:
    """A port that is accepted from by all: what waits there is not lost either.

    Streams stand still meanwhile, or those of the victim might be over.
    """
    expected = answers(tiny, ASKED)
    async with running(tiny, workers=2, **PATIENT) as cluster:
        engine = cluster.engine("decode-0")
        os.kill(engine, signal.SIGSTOP)
        clients, reading = begin(cluster)
        await some_tokens(clients)
        before = workers(cluster)
        victim = before[0]
        os.kill(victim, signal.SIGSTOP)
        cut = peers_of(victim)
        late = Clients(cluster.session, cluster.url, random.Random(0), seats())
        more = [asyncio.create_task(late.ask_alone(one, leaves=False)) for one in ASKED]
        os.kill(victim, signal.SIGKILL)
        os.kill(engine, signal.SIGCONT)
        await asyncio.gather(*reading, *more)
        for number, told in clients.told.items():
            assert (told.failure is not None) == (clients.ports[number] in cut), told
            whole = expected[number][0]
            assert told.choices[0] == whole[: len(told.choices[0])]
            assert told.failure or told.choices[0] == whole
        assert [late.told[one.number].choices for one in ASKED] == expected
        await cluster.blocks_come_back()
        await until(lambda: len(workers(cluster)) == 2)
        assert before[1] in workers(cluster)
        assert await is_seen(partial(is_idle, cluster), SOON_S)
        page = await pages(cluster)
        assert all(one[IN_FLIGHT] == 0 for one in page)
        assert not any("Traceback" in line for line in cluster.lines)


async def test_a_key_has_its_minute_once_whichever_workers_it_comes_to(tiny: Path) -> None:
    """Each call over a new connection: whichever worker is free accepts it."""
    limits: dict[str, Any] = {"api_key": ("one",), "requests_per_minute_per_key": MINUTE}
    async with running(tiny, workers=2, **limits) as cluster:
        answers = [await limited(cluster) for _ in range(MINUTE)]
        assert [status for status, _ in answers] == [200] * MINUTE, "one worker has them all"
        assert {most for _, most in answers} == {str(MINUTE)}
        more = [await limited(cluster) for _ in range(MINUTE)]
        passed = [status for status, _ in more].count(200)
        assert passed <= MINUTE / 2, "as much again would be a minute of each"


async def limited(cluster: Running) -> tuple[int, str | None]:
    """Over a new connection: the status, and the limit that was told."""
    body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 1}
    url, key = f"{cluster.url}/v1/completions", {"Authorization": "Bearer one"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=body, headers=key) as answer,
    ):
        await answer.read()
        return answer.status, answer.headers.get("x-ratelimit-limit-requests")


async def test_whichever_worker_answers_says_what_all_have_done(tiny: Path) -> None:
    """Streams have their first token, and stand still until all have been asked."""
    async with running(tiny, workers=3, **PATIENT) as cluster:
        os.kill(cluster.engine("decode-0"), signal.SIGSTOP)
        clients, reading = begin(cluster)
        await some_tokens(clients)
        told = [await status(cluster) for _ in range(LOOKS)]
        os.kill(cluster.engine("decode-0"), signal.SIGCONT)
        assert {one["requests_in_flight"] for one in told} == {STREAMS}
        assert all(len(one["nodes"]) == 2 for one in told)
        await asyncio.gather(*reading)
        assert await is_seen(partial(is_idle, cluster), SOON_S)
        page = await pages(cluster)
        assert {one[IN_FLIGHT] for one in page} == {0}
        assert {one[ANSWERED] for one in page} == {STREAMS}
        assert {one["pdserve_proxy_nodes"] for one in page} == {2}
        assert {one["pdserve_proxy_workers"] for one in page} == {3}


async def test_the_end_of_the_parent_is_the_end_of_its_workers_and_another_takes_over(
    tiny: Path,
) -> None:
    async with running(tiny, workers=2) as cluster:
        clients, reading = begin(cluster)
        await some_tokens(clients)
        before = workers(cluster)
        os.kill(cluster.door("proxy"), signal.SIGKILL)
        await asyncio.gather(*(gone(pid) for pid in before))
        await asyncio.gather(*reading)
        await until(lambda: len(workers(cluster)) == 2 and workers(cluster) != before)
        late = Clients(cluster.session, cluster.url, random.Random(0), seats())
        async with asyncio.timeout(SOON_S):
            while late.told.get(0) is None or late.told[0].failure:
                await late.ask_alone(ASKED[0], leaves=False)
        assert late.told[0].choices == answers(tiny, ASKED[:1])[0]
        await cluster.blocks_come_back()


async def test_while_the_parent_hangs_workers_go_on_with_the_nodes_they_know(
    tiny: Path,
) -> None:
    """For longer than nodes may be silent, and with more log than its pipe has room for."""
    async with running(tiny, workers=2) as cluster:
        parent, clock = cluster.door("proxy"), asyncio.get_running_loop().time
        os.kill(parent, signal.SIGSTOP)
        try:
            last = clock() + EXPIRY_S + HUNG_S
            while clock() < last:
                assert (await cluster.complete([5, 6, 7], max_tokens=2))["usage"]
        finally:
            os.kill(parent, signal.SIGCONT)
        assert (await cluster.complete([5, 6, 7], max_tokens=2))["usage"]
        await until(lambda: any("speaks again" in line for line in cluster.lines))
        assert {one["breaker"] for one in await cluster.nodes()} == {"closed"}


async def test_sigterm_to_the_parent_lets_all_streams_end(tiny: Path) -> None:
    expected = answers(tiny, ASKED)
    async with running(tiny, workers=2, drain_timeout_s=60.0) as cluster:
        clients, reading = begin(cluster)
        await some_tokens(clients)
        before = workers(cluster)
        os.kill(cluster.door("proxy"), signal.SIGTERM)
        await asyncio.gather(*reading)
        assert [clients.told[one.number].choices for one in ASKED] == expected
        await asyncio.gather(*(gone(pid, SOON_S) for pid in before))


def seats() -> asyncio.Semaphore:
    return asyncio.Semaphore(STREAMS)


def begin(cluster: Running) -> "tuple[Clients, list[asyncio.Task[None]]]":
    """All streams at once, each over its own connection."""
    clients = Clients(cluster.session, cluster.url, random.Random(0), seats())
    return clients, [asyncio.create_task(clients.ask_alone(one, leaves=False)) for one in ASKED]


async def some_tokens(clients: Clients) -> None:
    """Until each stream has begun."""
    told = clients.told.values()
    await until(lambda: len(told) == STREAMS and all(one.choices[0] for one in told))


def workers(cluster: Running) -> Sequence[int]:
    return sorted(children(cluster.door("proxy")))


async def is_idle(cluster: Running) -> bool:
    """A worker counts an answer as over when its client has all of it, or a moment later."""
    return not (await status(cluster))["requests_in_flight"]


async def told_by_all(url: str) -> str:
    """Asked again where a worker may have been silent for so long that it was left out."""
    clock = asyncio.get_running_loop().time
    async with asyncio.timeout(SOON_S):
        while True:
            since = clock()
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                text = await answer.text()
            if clock() - since < PATIENCE_S:
                return text


async def status(cluster: Running) -> dict[str, Any]:
    """Over a new connection, so that any worker may answer."""
    found: dict[str, Any] = json.loads(await told_by_all(f"{cluster.url}/status"))
    return found


async def pages(cluster: Running) -> list[dict[str, float]]:
    """Again and again the sums of all samples of a name, over connections of their own."""
    found = list[dict[str, float]]()
    for _ in range(LOOKS):
        text = await told_by_all(f"{cluster.url}/metrics")
        sums = defaultdict[str, float](float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] += sample.value
        found.append(dict(sums))
    return found
