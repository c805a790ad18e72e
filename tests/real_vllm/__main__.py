"""`python -m tests.real_vllm --vllm PATH`: vLLM's own nodes behind our proxy, on a CPU.

They answer what our own cluster with the same model answers: every question with a prefill and
a decode node, one after the prefill node was killed, and a long one whose decode node is killed
in the middle. Says what differs, and exits with 1 if anything does. No more than two nodes of
vLLM live at a time: each keeps a core busy even if it has nothing to do.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import aiohttp

from tests.e2e.cluster import running
from tests.real_vllm.comparison import Comparison
from tests.real_vllm.nodes import Vllm, VllmNode, proxy
from tests.real_vllm.questions import COMPLETIONS, HELD, QUESTIONS, RUNS

FOLDER = Path(__file__).parents[2] / "deploy" / "demo" / "model"
PATIENCE = aiohttp.ClientTimeout(total=180.0)
LONG_ANSWER = 600


def main() -> None:
    """Read where vLLM is, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, required=True, help="vLLM's program")
    parser.add_argument("--logs", type=Path, help="where to keep what all processes said")
    parser.add_argument("--flags", default="", help="more flags for vLLM's nodes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        logs = asked.logs or Path(folder)
        sys.exit(asyncio.run(_compare(asked.vllm, tuple(asked.flags.split()), logs)) and 1)


async def _compare(program: Path, flags: tuple[str, ...], logs: Path) -> int:
    """How many answers differ."""
    async with (
        running(FOLDER) as ours,
        aiohttp.ClientSession(timeout=PATIENCE) as session,
        proxy(FOLDER, logs, session) as front,
    ):
        vllm = Vllm(program, FOLDER, flags, logs, session)
        both = Comparison(session, front.url, ours.url)
        async with vllm.node("decode") as decode:
            await front.add("decode", decode)
            async with vllm.node("prefill") as prefill:
                await front.add("prefill", prefill)
                for name, question in QUESTIONS.items():
                    await both.ask(name, question)
            await both.ask("without its prefill node", (COMPLETIONS, RUNS))
            async with vllm.node("decode-2") as successor:
                await front.add("decode", successor)
                await _kill_one(both, decode, successor)
        return both.differ


async def _kill_one(both: Comparison, *nodes: VllmNode) -> None:
    """A long answer; the node that runs it is killed in its middle."""
    killed = list[VllmNode]()

    async def kill() -> None:
        for one in nodes:
            if await one.running(both.session):
                await one.kill()
                killed.append(one)

    long = {**HELD, "max_tokens": LONG_ANSWER, "ignore_eos": True, "stream": True}
    await both.ask("a node that was killed", (COMPLETIONS, long), kill)
    assert len(killed) == 1, f"{len(killed)} of {len(nodes)} nodes ran the answer"


if __name__ == "__main__":
    main()
