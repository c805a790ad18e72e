"""`make demo`: asks the demo model one question through its own cluster, and prints each stage.

Exits with 1 if the answer did not come over two nodes: the demo has to prove that.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from deploy.config import UpConfig
from deploy.standard_files import say
from deploy.up import LocalCluster

QUESTION = "What is a prefill node?"
MILLION, MILLISECONDS = 1e6, 1e3
ORDER = ("queue", "prefill", "reserve", "transfer", "decode")


def main() -> None:
    """Start a cluster, ask, print the stages, stop."""
    question = " ".join(sys.argv[1:]) or QUESTION
    moved = asyncio.run(_ask_a_cluster(question))
    if not moved:
        raise SystemExit("no KV was moved: the answer was not split")


async def _ask_a_cluster(question: str) -> int:
    """Returns the KV bytes that went from one node to the other."""
    log = list[str]()
    cluster = LocalCluster(UpConfig(port=0), show=log.append)
    running = asyncio.create_task(cluster.run())
    either: list[asyncio.Future[Any]] = [running, cluster.ready]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            _say("\n".join(log))
            return 0
        return await _ask(cluster.ready.result(), question)
    finally:
        cluster.stop()
        await running


async def _ask(url: str, question: str) -> int:
    clock = asyncio.get_running_loop().time
    first_s, stages = None, list[Mapping[str, Any]]()
    _say(f"{url}\n\nyou    {question}\nmodel  ", end="")
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        models = await client.models.list()  # also loads what the client loads at first use
        since = clock()
        stream = await client.chat.completions.create(
            model=models.data[0].id,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"pdserve": {"timings": True}},
        )
        async for chunk in stream:
            text = "".join(choice.delta.content or "" for choice in chunk.choices)
            if text and first_s is None:
                first_s = clock() - since
            _say(text, end="")
            stages += _stages(chunk)
    _say("\n")
    return _tell(stages, first_s or 0.0)


def _stages(chunk: ChatCompletionChunk) -> Sequence[Mapping[str, Any]]:
    """Our own field of the last chunk, which the client passes through."""
    extra = chunk.model_extra or {}
    stages: Sequence[Mapping[str, Any]] = (extra.get("pdserve") or {}).get("stages", ())
    return stages


def _tell(stages: Sequence[Mapping[str, Any]], first_s: float) -> int:
    """Print one line for each stage, and the client's own time to first token."""
    moved = 0
    for name in ORDER:
        for stage in (one for one in stages if one["stage"] == name):
            seconds, num_bytes = stage["seconds"], stage["num_bytes"]
            line = f"{name:12} {seconds * MILLISECONDS:8.1f} ms"
            if num_bytes:
                line += f"  {num_bytes} bytes, {num_bytes / seconds / MILLION:.1f} MB/s"
            _say(line)
            moved += num_bytes
        if name == "transfer":
            _say(f"{'first token':12} {first_s * MILLISECONDS:8.1f} ms")
    return moved


def _say(text: str, end: str = "\n") -> None:
    say(text + end)


if __name__ == "__main__":
    main()
