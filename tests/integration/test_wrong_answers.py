"""What others answered wrongly, with status 200, when prompt and answer were on two nodes."""

from pathlib import Path

import pytest

from api.generator import FailedEvent, Leg, PromptEvent, TicketEvent, TokenEvent
from engine.request import Request, RequestId, Sampling
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.cluster import Cluster, next_tokens, tokens_of
from tests.fakes.driver import load, prompt, requests, run
from tests.fakes.engine import FakeEngine
from tests.fakes.http import Client
from tests.fakes.model import alone
from tests.fakes.node import Ill
from tests.fakes.text import byte_level, served

BLOCK = 4
LENGTHS = [BLOCK * 3 - 1, BLOCK * 3, BLOCK * 3 + 1]


def request(length: int, name: str = "r", first: int = 0) -> Request:
    sampling = Sampling(6, temperature=1.0, seed=5)
    return Request(RequestId(name), tuple(range(first, first + length)), sampling)


def small() -> FakeEngine:
    return FakeEngine(chunk=BLOCK)


@pytest.mark.parametrize("length", LENGTHS)
async def test_a_prompt_that_both_nodes_have_cached_is_answered_as_at_first(
    length: int,
) -> None:
    """Diverged from token 0 (vllm#52617), or on the second time (vllm#22965)."""
    cluster, asked = Cluster(engine=small), request(length)
    for _ in range(3):
        assert await cluster.ask(asked) == alone(asked)
    cluster.settle()
    assert cluster.leaked_blocks == 0


@pytest.mark.parametrize("length", LENGTHS)
async def test_as_much_is_told_as_cached_as_by_one_node(length: int) -> None:
    """Not all but a token, all, or nothing (vllm#43370, #47136, sglang#25972)."""
    told = dict[int, list[int]]()
    for prefills in (0, 1):
        cluster, told[prefills] = Cluster(prefills, 1, engine=small), []
        for _ in range(3):
            async for event in cluster.door.stream(request(length)):
                if isinstance(event, PromptEvent):
                    told[prefills].append(event.cached_tokens)
    assert told[0] == told[1] == [0, *[(length - 1) // BLOCK * BLOCK] * 2]


@pytest.mark.parametrize("length", LENGTHS)
async def test_a_retry_behind_the_first_token_may_need_a_block_more(length: int) -> None:
    """Prompt and first token are a block longer than the prompt was (vllm#50558)."""
    cluster, asked = Cluster(2, 2, engine=small), request(length)
    stream = cluster.door.stream(asked)
    said = await next_tokens(stream)
    for node in cluster.decodes:
        if node.legs:
            node.suffer(Ill.KILL)
    assert said + await tokens_of(stream) == alone(asked)


@pytest.mark.parametrize("known", range(BLOCK, 5 * BLOCK, BLOCK))
async def test_blocks_that_decode_has_are_skipped_at_the_right_end(known: int) -> None:
    """Not the wrong end (vllm#48758), and in no race with the rest (sglang#31239)."""
    cluster = Cluster(engine=small)
    prefix = Request(RequestId("prefix"), tuple(range(known)), Sampling(1, seed=5))
    await cluster.ask(prefix)
    asked = request(6 * BLOCK + 1)
    assert await cluster.ask(asked) == alone(asked)


async def test_nodes_that_do_not_fit_answer_all_the_same_if_somebody_pairs_them() -> None:
    """Hangs (llm-d#2433, llm-d#355), or garbage with status 200 (vllm#42895)."""
    cluster = Cluster(engine=small, decode_engine=lambda: FakeEngine(block_size=6))
    asked = request(20)
    prefill, decode = cluster.prefills[0], cluster.decodes[0]
    held, said = prefill.generate(asked, Leg(hold=True)), list[int]()
    async for event in held:
        if isinstance(event, TicketEvent):
            leg = Leg(ticket=event.ticket)
            said = await tokens_of(decode.generate(asked, leg))
            break
    await held.aclose()
    assert said == alone(asked)
    assert decode.loop.load_failures == {"mismatch": 1}
    cluster.settle()
    assert cluster.leaked_blocks == 0


async def test_a_prompt_that_is_too_long_is_refused_by_both_kinds_of_leg() -> None:
    """Refused by prefill, answered with garbage by decode (sglang#30233)."""
    cluster, asked = Cluster(engine=small), request(5000)
    for node in (cluster.prefills[0], cluster.decodes[0]):
        for leg in (Leg(hold=True), Leg()):
            said = [event async for event in node.generate(asked, leg)]
            assert not any(isinstance(event, TokenEvent | TicketEvent) for event in said)
            assert isinstance(said[-1], FailedEvent)
            assert not said[-1].retryable


@pytest.mark.parametrize("length", [30, 31, 32, 33, 60])
async def test_a_prompt_that_only_decode_has_room_for_is_run_there(length: int) -> None:
    """Its prefill nodes, had they been asked, would have called it too long."""
    cluster = Cluster(engine=lambda: FakeEngine(blocks=8), decode_engine=small)
    asked = request(length)
    assert await cluster.ask(asked) == alone(asked)
    assert cluster.prefills[0].legs == (length < 32)
    cluster.settle()
    assert cluster.leaked_blocks == 0


@pytest.mark.parametrize("max_tokens", [1, 5])
async def test_a_first_token_that_ends_the_answer_ends_its_stream(max_tokens: int) -> None:
    """Decode went on with nonsense (sglang#12151), or nothing said the end (sglang#12557)."""
    codec, cluster = byte_level(), Cluster(engine=small)
    first = alone(Request(RequestId("r"), codec.encode("the"), Sampling(1, seed=3)))
    said = await Client(cluster.door, served(context=64)).complete(
        stop_token_ids=first, max_tokens=max_tokens, seed=3, stream=True
    )
    assert [event["choices"][0]["finish_reason"] for event in said.events][-1] == "stop"
    assert codec.encode(said.text) == ()
    cluster.settle()
    assert cluster.leaked_blocks == 0


@pytest.mark.parametrize("ignored", [True, False])
async def test_a_model_that_ends_with_its_first_token_says_the_same_on_two_nodes(
    tmp_path: Path, ignored: bool
) -> None:
    """Whether its end counts or not (sglang#12557, dynamo#13442)."""
    folder, tokens = make_checkpoint(tmp_path, "llama"), prompt(20)
    greedy = Sampling(6, temperature=0, ignore_eos=True)
    [usual] = run(load(folder), requests([tokens], greedy))
    (folder / "generation_config.json").unlink()
    edit_config(folder, {"eos_token_id": usual[0]})
    cluster = Cluster(engine=lambda: load(folder))
    asked = Request(RequestId("r"), tokens, Sampling(6, temperature=0, ignore_eos=ignored))
    assert await cluster.ask(asked) == (usual if ignored else usual[:1])
    cluster.settle()
    assert cluster.leaked_blocks == 0
