"""The second turn of a chat computes what is new in it, over real processes and connectors."""

from pathlib import Path

import pytest

from tests.e2e.cluster import Running, running, stage, tokens_of
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import prompt
from tests.fakes.reference import Reference

FETCHED, MOVED = "pdserve_prompt_tokens_fetched_total", "pdserve_kv_transfer_bytes_total"
FIRST, NEW, ANSWER = prompt(70, 1), prompt(5, 2), 100


@pytest.mark.parametrize("connector", ["nixl", "tcp"])
async def test_the_second_turn_fetches_what_decode_has(tmp_path: Path, connector: str) -> None:
    """Two prefill nodes: the one that runs the second turn has never seen the first."""
    folder = make_checkpoint(tmp_path / "llama", "llama")
    turns = {"kv_connector": connector, "policy": "round_robin"}
    async with running(folder, prefill=2, **turns) as cluster:
        said = tokens_of(await cluster.complete(FIRST, max_tokens=ANSWER))
        second = [*FIRST, *said, *NEW]
        answer = await cluster.complete(second, max_tokens=8)
        fetched = await cluster.metric(FETCHED)
        await cluster.blocks_come_back()
    reference = Reference(folder)
    assert said == reference.greedy(FIRST, said)
    again = tokens_of(answer)
    assert again == reference.greedy(second, again)
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == 160  # 169 have their KV on the decode node, and are 10 full blocks
    assert sum(fetched.values()) == 160
    assert stage(answer, "fetch")["num_bytes"] > 0


async def test_four_choices_move_one_prompt(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "llama", "llama")
    async with running(folder, prefill=2, decode=2, policy="round_robin") as cluster:
        moved = await _moved(cluster, n=1, salt="one")
        assert await _moved(cluster, n=4, salt="four") <= moved * 1.3
        await cluster.blocks_come_back()


async def _moved(cluster: Running, n: int, salt: str) -> float:
    before = sum((await cluster.metric(MOVED)).values())
    asked = {"temperature": 1.0, "n": n, "cache_salt": salt, "max_tokens": 4}
    answer = await cluster.complete(prompt(300, 3), **asked)
    assert len(answer["choices"]) == n
    return sum((await cluster.metric(MOVED)).values()) - before
