"""What a newcomer sees first: `make demo`, and the openai client against the bundled model."""

import asyncio
import re
import shlex
import signal
import sys
from pathlib import Path

import aiohttp
from openai import AsyncOpenAI

from deploy.config import DEMO_MODEL
from tests.e2e.cluster import MODEL, launched, running
from tests.fakes.lines import PATIENCE_S, line_with
from tests.unit.test_watching import keys, replace

ROOT = Path(__file__).parents[2]
MOVED = re.compile(r"transfer .* (\d+) bytes, [\d.]+ MB/s")


async def test_the_demo_tells_every_stage() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.demo.ask"), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    text = said.decode()
    assert process.returncode == 0, text
    assert "A prefill node runs" in text
    for stage in ("queue", "prefill", "transfer", "first token", "decode"):
        assert re.search(rf"^{stage} +[\d.]+ ms", text, re.MULTILINE), text
    moved = MOVED.search(text)
    assert moved
    assert int(moved[1]) > 0


async def test_the_line_to_copy_gets_an_answer() -> None:
    """What `curl` would send is read from the line that `make serve` prints."""
    async with launched(DEMO_MODEL) as (launcher, url), asyncio.timeout(PATIENCE_S):
        line = await line_with(launcher.stdout, re.compile("curl"))
        _, where, _, header, _, body = shlex.split(line.string)
        name, _, value = header.partition(": ")
        async with (
            aiohttp.ClientSession() as session,
            session.post(where, data=body, headers={name: value}) as answer,
        ):
            said = await answer.json()
    assert where.startswith(f"{url}/v1/")
    assert "A prefill node runs" in said["choices"][0]["message"]["content"]


async def test_a_sighup_has_the_proxy_read_its_keys_and_ends_nothing(tmp_path: Path) -> None:
    """The file has not changed, so nothing else has it read."""
    path = replace(tmp_path / "keys.toml", keys(one="sk-1"))
    more = ("--api-key-file", str(path), "--workers", "2")
    async with launched(DEMO_MODEL, *more) as (launcher, url), asyncio.timeout(PATIENCE_S):
        launcher.send_signal(signal.SIGHUP)
        for _ in range(2):
            await line_with(launcher.stdout, re.compile("was read anew"))
        key = {"Authorization": "Bearer sk-1"}
        async with (
            aiohttp.ClientSession(headers=key) as session,
            session.get(f"{url}/v1/models") as answer,
        ):
            assert answer.status == 200


async def test_the_openai_client_chats_and_the_model_ends_by_itself() -> None:
    async with running(DEMO_MODEL) as cluster:
        async with AsyncOpenAI(base_url=f"{cluster.url}/v1", api_key="none") as client:
            models = await client.models.list()
            answer = await client.chat.completions.create(
                model=MODEL,
                messages=[{"role": "user", "content": "What does the proxy do?"}],
                temperature=0,
            )
        await cluster.blocks_come_back()
    assert [model.id for model in models.data] == [MODEL]
    assert answer.choices[0].finish_reason == "stop"
    assert "proxy" in (answer.choices[0].message.content or "").lower()
