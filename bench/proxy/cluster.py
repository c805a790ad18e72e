"""Starts the benchmark's processes: proxy, scripted nodes, relay, load generator."""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec

from api.text.tokenizing import TextCodec, load_text_codec
from bench.proxy.answers import SCRIPT, LoadJob, LoadResult, Script
from bench.proxy.load import LENGTH, cpu_clock
from bench.proxy.places import CoreSets, started_on
from deploy.config import DEMO_MODEL as DEMO
from deploy.supervisor import SupervisedProcess

NAME = "scripted"
SCRIPTED_TOKENS = 48
PROMPT_WORDS = 120
TIMES = 200
STOP_S = 5.0
READY_S = 30.0
SETTLE_S = 1.0
IDLE_S = 1.0
CHAT, CALL = "/v1/chat/completions", "/inference/v1/generate"


class LoadFailed(RuntimeError):
    """The load generator says why."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What is running."""

    codec: TextCodec
    proxy: SupervisedProcess
    nodes: SupervisedProcess
    relay: SupervisedProcess
    legs: SupervisedProcess
    text: str

    @property
    def prompt_tokens(self) -> int:
        """Of the one chat that is asked."""
        return len(self._tokens())

    @property
    def body(self) -> bytes:
        """The one chat, as it is asked."""
        return self._chat().replace(LENGTH, "8").encode()

    @property
    def address(self) -> str:
        """Of the proxy."""
        return _address(self.proxy)

    def pid(self, kind: str) -> int:
        """Of the proxy, the nodes or a relay."""
        process = self._child(kind).process
        assert process is not None
        return process.pid

    def tokenizing_s(self, pause_s: float = 0.0) -> float:
        """Seconds of CPU for the chat's template and tokens, median; others have the caches for
        `pause_s` between two.
        """
        times = list[float]()
        for _ in range(TIMES):
            time.sleep(pause_s)
            since = time.process_time()
            self._tokens()
            times.append(time.process_time() - since)
        return statistics.median(times)

    def _child(self, kind: str) -> SupervisedProcess:
        each = {"proxy": self.proxy, "node": self.nodes, "relay": self.relay, "legs": self.legs}
        return each[kind]

    async def idle(self) -> float:
        """What of a core the proxy takes with nothing to do."""
        clock = cpu_clock(self.pid("proxy"))
        before = time.clock_gettime(clock)
        await asyncio.sleep(IDLE_S)
        return (time.clock_gettime(clock) - before) / IDLE_S

    async def ask(
        self, kind: str, streams: int, length: int, step_s: float, burst: int, window_s: float
    ) -> LoadResult:
        """One window; raises LoadFailed."""
        await self.set_script(Script(step_s, burst))
        first = max(1, length // 16)
        job = LoadJob(
            address=_address(self._child(kind)),
            path=CHAT if kind == "proxy" else CALL,
            body=self._chat() if kind == "proxy" else self._call(),
            lengths=[*range(first, length, first), length],
            pause_s=step_s,
            settle_s=SETTLE_S,
            streams=streams,
            window_s=window_s,
            pids=[self.pid(kind)],
            spaces=kind == "proxy",
        )
        return await _load(job)

    async def set_script(self, script: Script) -> None:
        """How fast the nodes answer from now on."""
        url = f"http://{_address(self.nodes)}{SCRIPT}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, data=msgspec.json.encode(script)) as answer,
        ):
            answer.raise_for_status()

    def _tokens(self) -> Sequence[int]:
        chat = self.codec.render(self._messages(), {"add_generation_prompt": True})
        return self.codec.encode(chat, special_tokens=False)

    def _messages(self) -> list[dict[str, str]]:
        return [{"role": "user", "content": self.text}]

    def _chat(self) -> str:
        body = {"model": NAME, "messages": self._messages(), "stream": True, "temperature": 0}
        return _with_length({**body, "ignore_eos": True, "max_tokens": LENGTH})

    def _call(self) -> str:
        sampling = {"temperature": 0, "max_tokens": LENGTH}
        ids = list(self._tokens())
        return _with_length({"token_ids": ids, "stream": True, "sampling_params": sampling})


@asynccontextmanager
async def open_bench(places: CoreSets) -> AsyncIterator[Bench]:
    """Everything started and registered; ended with the context. Load comes from `others`."""
    codec = load_text_codec(DEMO)
    words = spaced(codec)
    async with AsyncExitStack() as stack:

        async def measured(name: str, *arguments: str) -> SupervisedProcess:
            with started_on(places.measured):
                return await stack.enter_async_context(running(name, *arguments))

        stack.enter_context(started_on(places.others))
        proxy = await measured("proxy", *proxy_command())
        assert proxy.facts
        discovery = proxy.facts["discovery_address"]
        tokens = ",".join(map(str, words[:SCRIPTED_TOKENS]))
        script = ("--proxy", discovery, "--model", NAME, "--tokens", tokens)
        nodes = await stack.enter_async_context(
            running("nodes", "-m", "bench.proxy.node", *script)
        )
        node = ("--node", _address(nodes))
        relay = await measured("relay", "-m", "bench.proxy.relay", *node)
        assert nodes.facts
        both = (*node, "--prefill", nodes.facts["prefill"])
        legs = await measured("legs", "-m", "bench.proxy.relay", *both)
        await _registered(_address(proxy))
        text = codec.decode(words[-PROMPT_WORDS:]).strip()
        yield Bench(codec, proxy, nodes, relay, legs, text)


def proxy_command() -> Sequence[str]:
    """The proxy as operators start it, at ports that the system picks."""
    ports = ("--port", "0", "--discovery-port", "0")
    return "-m", "proxy", *ports, "--model", str(DEMO), "--served-model-name", NAME


def spaced(codec: TextCodec) -> list[int]:
    """Tokens that are a space and letters."""
    texts = [(token, codec.vocabulary.text_of(token)) for token in range(codec.num_token_ids)]
    return [
        token
        for token, text in texts
        if token not in codec.special_ids
        and text[:1] == " "
        and text[1:].isalpha()
        and text.isascii()
    ]


@asynccontextmanager
async def running(name: str, *arguments: str) -> AsyncIterator[SupervisedProcess]:
    """One process of ours, once it is ready; raises ProcessFailed."""
    command = (sys.executable, *arguments)
    child = SupervisedProcess(name, lambda: command, os.environ, _show, STOP_S)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(child.run())
        async with asyncio.timeout(READY_S):
            await child.ready
        try:
            yield child
        finally:
            await child.stop()


def _show(name: str, line: str) -> None:
    """What tells of single requests is dropped."""
    if "request_id=" not in line:
        sys.stderr.write(f"{name}: {line}\n")


async def _registered(proxy: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(READY_S):
        while True:
            async with session.get(f"http://{proxy}/health") as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.1)


async def _load(job: LoadJob) -> LoadResult:
    command = sys.executable, "-m", "bench.proxy.load"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=pipe
    )
    said, error = await process.communicate(msgspec.json.encode(job))
    if process.returncode:
        raise LoadFailed(error.decode())
    return msgspec.json.decode(said, type=LoadResult)


def _address(child: SupervisedProcess) -> str:
    assert child.facts
    return child.facts["http_address"]


def _with_length(body: object) -> str:
    """The length is to be filled in where it is a number."""
    return msgspec.json.encode(body).decode().replace(f'"{LENGTH}"', LENGTH)
