"""A draft model, or a draft head, saves steps and changes no answer, also when a node dies."""

import asyncio
import json
import os
import signal
from pathlib import Path

from tests.e2e.cluster import Running, running, tokens_of
from tests.e2e.streams import streamed_past_half
from tests.fakes.draft_heads import headed, make_head_checkpoint
from tests.fakes.driver import prompt

PROMPTS = [prompt(length) for length in (3, 40, 90)]
ANSWER = 60


async def test_a_draft_model_changes_no_answer(tiny: Path) -> None:
    """It is the model itself, so whatever it drafts is right, on each node that goes on."""
    drafts = {"model": str(tiny), "num_speculative_tokens": 3}
    await no_answer_changes(tiny, {"speculative_config": json.dumps(drafts)})


async def test_a_draft_head_changes_no_answer(tmp_path: Path) -> None:
    """Prefill nodes make its KV of a prompt, and hand it over."""
    await no_answer_changes(make_head_checkpoint(tmp_path, right=True), headed(3))


async def no_answer_changes(model: Path, drafts: dict[str, str]) -> None:
    """All drafts are right, and one of two decode nodes dies halfway through its answers."""
    async with running(model, decode=2, **drafts) as cluster:
        alone = [tokens_of(await cluster.complete(one, max_tokens=ANSWER)) for one in PROMPTS]
        drafted, accepted = await counted(cluster)
        assert drafted == accepted > ANSWER
        halfway = asyncio.Semaphore(0)
        answers = [
            asyncio.create_task(
                streamed_past_half(cluster.session, cluster.url, one, ANSWER, halfway)
            )
            for one in PROMPTS * 2
        ]
        for _ in answers:
            await halfway.acquire()
        os.kill(cluster.engine("decode-0"), signal.SIGKILL)
        assert await asyncio.gather(*answers) == alone * 2
        await cluster.blocks_come_back()
    async with running(model) as plain:
        for tokens, said in zip(PROMPTS, alone, strict=True):
            assert tokens_of(await plain.complete(tokens, max_tokens=ANSWER)) == said


async def counted(cluster: Running) -> list[float]:
    """Tokens that were drafted, and those of them that were right, on all nodes."""
    name = "pdserve_spec_decode_num_{}_tokens_total"
    both = [await cluster.metric(name.format(kind)) for kind in ("draft", "accepted")]
    return [sum(one.values()) for one in both]
