"""`pdserve bench` against an endpoint that runs; the one with a cluster is `make bench`."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from bench.config import BenchConfig
from bench.main import WARM_UP, run
from bench.proxy.cluster import running
from tests.fakes.raw_http import END, SSE, Step, answer, events, raw_server

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from deploy.cli import main; main(); assert 'torch' not in sys.modules"
TOKEN = {"choices": [{"text": "a"}]}
STAGES = {"stages": [{"stage": "prefill", "seconds": 0.25}]}
USAGE = {"choices": [], "usage": {"completion_tokens": 2}, "pdserve": STAGES}
SHAPE = ["--runs", "2", "--requests", "3", "--concurrency", "2"]
SIZES = ["--prompt-tokens", "5", "--output-tokens", "2", "--vocabulary", "7"]


async def bench(url: str) -> subprocess.CompletedProcess[str]:
    words = ["bench", "--url", url, "--model", "llama", *SHAPE, *SIZES]
    command = [sys.executable, "-c", MAIN, *words]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, cwd=ROOT
    )


async def test_an_endpoint_that_runs_is_measured_and_nothing_started() -> None:
    script = [SSE, *events(TOKEN, TOKEN, USAGE), b"e\r\ndata: [DONE]\n\n\r\n", END]
    asked = WARM_UP + 2 * 3
    async with raw_server(*[script] * asked) as server:
        ran = await bench(f"http://{server.address}")
    assert (ran.returncode, ran.stderr) == (0, "")
    first, stage, *_ = lines = ran.stdout.splitlines()
    assert re.fullmatch(r"run 1: .*; first token .*; per token .*; between tokens .* ms", first)
    assert stage.split() == ["prefill", "p50", "250.0", "p99", "250.0", "ms"]
    assert lines[-1].startswith("median of 2 runs: ")
    assert len(lines) == 5  # none is about a process
    bodies = [msgspec.json.decode(body) for body in server.bodies]
    assert (len(bodies), server.connections) == (asked, 3 * 2)
    assert {body["model"] for body in bodies} == {"llama"}
    assert {body["max_tokens"] for body in bodies} == {2}
    assert {len(body["prompt"]) for body in bodies} == {5}
    assert {token for body in bodies for token in body["prompt"]} == {1, 2, 3, 4, 5, 6}


async def test_no_call_sends_a_prompt_that_the_endpoint_may_have_cached() -> None:
    script = [SSE, *events(TOKEN, TOKEN, USAGE), END]
    asked = 2 * (WARM_UP + 2 * 3)
    async with raw_server(*[script] * asked) as server:
        config = BenchConfig(
            url=server.address, model="llama", runs=2, requests=3, output_tokens=2
        )
        for _ in range(2):
            await asyncio.to_thread(run, config)
    assert len({bytes(body) for body in server.bodies}) == asked


async def test_an_endpoint_that_refuses_ends_it_with_its_words() -> None:
    refusal = [answer(404, {"error": "no such model"})]
    async with raw_server(*[refusal] * WARM_UP) as server:
        ran = await bench(f"http://{server.address}")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == 'pdserve bench: status 404: {"error":"no such model"}\n'


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ([b"HTTP/1.1 429 X\r\nContent-Length: 0\r\n\r\n"], "status 429:"),
        ([b"HTTP/1.1 500 X\r\nContent-Length: 1\r\n\r\n\xff"], "status 500: \ufffd"),
        ([b"HTTP/1.1 307 X\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"], "status 307:"),
        ([SSE, *events(TOKEN, {"error": "it died"}), END], 'an event of {"error":"it died"}'),
        ([answer(200, {})], "an answer without events, where a stream was asked for"),
    ],
)
async def test_a_hostile_endpoint_is_told_in_one_line(
    script: Sequence[Step], said: str
) -> None:
    async with raw_server(*[script] * WARM_UP) as server:
        config = BenchConfig(url=server.address, model="llama", output_tokens=2)
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(run, config)
    assert str(ended.value) == f"pdserve bench: {said}"


def test_hand_overs_are_measured_beside_floors() -> None:
    sizes = ["--sizes", "4096", "--sizes", "131072", "--turns", "2", "--fixed-runs", "2"]
    sizes += ["--no-steps"]
    command = [sys.executable, "-m", "bench.transfer", *sizes]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    for size in ("4 KiB", "128 KiB"):
        of_size = [line for line in lines if line.startswith(f"{size:>8} ")]
        assert len(of_size) == 2 * 5  # contiguous and scattered
        assert all(" GB/s; alone p50 " in line for line in of_size)
    assert sum("of raw nixl" in line for line in lines) == 4
    assert sum("of plain socket" in line for line in lines) == 4
    assert sum("offer to Arrived less bytes" in line for line in lines) == 4


def test_a_split_prompt_is_timed_beside_an_unsplit_one() -> None:
    sizes = ["--prompt-tokens", "40", "--output-tokens", "4", "--runs", "2"]
    command = [sys.executable, "-m", "bench.handover", "--shape", "tiny", *sizes]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    said = [line.partition(": ")[0].strip() for line in ran.stdout.splitlines()]
    assert said[1] == "split"
    assert {"alone", "one HTTP hop", "first token", "second after it"} < set(said)


async def test_a_crowd_of_nodes_says_that_it_is_there() -> None:
    """To whoever waits for it, before it measures a proxy that hears them."""
    command = "-m", "bench.proxy.crowd", "--proxy", "127.0.0.1:9", "--count", "3"
    async with running("crowd", *command) as crowd:
        assert crowd.ready.done()
