"""Two real models behind one real proxy that has no model files."""

import asyncio
import json
import os
import re
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from api.text.tokenizing import load_text_codec
from discovery.signed_calls import CallKey, Signing
from tests.fakes.checkpoints import CHAT_TEMPLATE, make_checkpoint
from tests.fakes.lines import line_with
from tests.fakes.waiting import is_seen

KEY = "the cluster's"
CHAT = "/v1/chat/completions"
NODES = 3
PATIENCE_S = 180.0
HI = [{"role": "user", "content": "The quick brown fox"}]
READY = re.compile(r"ready.* (http://[^ ,]+)(?: \(nodes register at (\S+)\))?")


async def test_a_proxy_without_model_files_serves_two_models(
    tmp_path: Path, tiny: Path
) -> None:
    """Each in its own words, as its own node would say it; with the cluster's key only."""
    other = make_checkpoint(tmp_path / "qwen", "qwen2", seed=1)
    reword(other, CHAT_TEMPLATE.replace("'<|end|>'", "' indeed<|end|>'"))
    cache = tmp_path / "cache"
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        command = ["proxy", "--port", "0", "--discovery-port", "0"]
        url, discovery = await started(stack, [*command, "--text-cache-dir", str(cache)])
        nodes = await asyncio.gather(
            started(stack, node("prefill_node", tiny, discovery, "llama", "default")),
            started(stack, node("decode_node", tiny, discovery, "llama", "default")),
            started(stack, node("decode_node", other, discovery, "qwen")),
        )
        assert await is_seen(partial(has_all, session, url), PATIENCE_S)
        assert await asked(session, url, 404, model="gpt")
        for name, folder, (door, _) in (
            ("llama", tiny, nodes[1]),
            ("default", tiny, nodes[1]),
            ("qwen", other, nodes[2]),
        ):
            said = await asked(session, url, model=name)
            assert said["prompt_token_ids"] == prompt_of(folder)
            there = await asked(session, door, model=name, signed=True)
            assert said["choices"][0]["message"] == there["choices"][0]["message"]
            assert said["choices"][0]["token_ids"] == there["choices"][0]["token_ids"]
        async with session.get(f"{url}/v1/models") as answer:
            ids = [one["id"] for one in (await answer.json())["data"]]
        assert ids == ["llama", "default", "qwen"]
        async with session.get(f"{nodes[0][0]}/model/text_files") as refused:
            assert refused.status == 401
        assert len(list(cache.iterdir())) == 2


async def has_all(session: aiohttp.ClientSession, url: str) -> bool:
    """Whether the proxy has heard of all nodes: they may be ready before."""
    async with session.get(f"{url}/status") as answer:
        return len((await answer.json())["nodes"]) == NODES


def reword(folder: Path, template: str) -> None:
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "chat_template": template}))


def prompt_of(folder: Path) -> list[int]:
    codec = load_text_codec(folder)
    text = codec.render(HI, {"add_generation_prompt": True})
    return list(codec.encode(text, special_tokens=False))


def node(kind: str, folder: Path, discovery: str, *names: str) -> list[str]:
    words = [word for name in names for word in ("--served-model-name", name)]
    ports = ["--port", "0", "--kv-port", "0", "--proxy", discovery, "--threads", "1"]
    return [kind, "--model", str(folder), "--dtype", "float32", *ports, *words]


async def asked(
    session: aiohttp.ClientSession,
    url: str,
    status: int = 200,
    *,
    signed: bool = False,
    **fields: object,
) -> dict[str, Any]:
    body = {"messages": HI, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
    headers = Signing(CallKey.of(KEY) if signed else None).headers("POST", CHAT)
    called = session.post(f"{url}{CHAT}", json={**body, **fields}, headers=headers)
    async with called as answer:
        said: dict[str, Any] = await answer.json()
        assert answer.status == status, said
        return said


async def started(stack: AsyncExitStack, command: list[str]) -> tuple[str, str]:
    """Run `python -m` with this command: its URL, and where nodes register with it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command),
        env=os.environ | {"PDSERVE_CLUSTER_KEY": KEY},
        stderr=asyncio.subprocess.PIPE,
    )
    stack.push_async_callback(ended, process)
    found = await line_with(process.stderr, READY)
    return found[1], found[2] or ""


async def ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
