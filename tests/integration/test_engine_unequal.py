"""Engines with blocks of different sizes say what one says, whatever KV their models keep."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.request import Request, RequestId
from engine.torch_engine import TorchEngine
from kv_transfer.api import Arrived, Sealed
from kv_transfer.local.connector import LocalSink, LocalSource
from node.identity import layout_of
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import GREEDY, assert_idle, drain, load, park, prompt, requests, run

FAMILIES = ["llama", "mistral", "gemma3_text", "gpt_oss", "deepseek_v3", "glm4_moe"]
PROMPTS = [prompt(length) for length in (1, 15, 16, 17, 31, 32, 33, 48, 100)]
LONGER = [(*tokens, *prompt(21, seed=8)) for tokens in PROMPTS]  # they begin as the others
AT = ("source", 1)


def fetch(source: TorchEngine, sink: TorchEngine, request: Request, name: str) -> int:
    """Through a connector; how many leading tokens were there already."""
    here = LocalSource(name, AT, source.kv_regions, "same", float, layout_of(source))
    there = LocalSink({AT: here}, sink.kv_regions, "same", float, layout=layout_of(sink))
    reserved = sink.reserve(request)
    assert reserved is not None
    ticket = here.offer(request.request_id)
    skip = reserved.filled // sink.info.block_size
    there.pull(ticket, into=reserved.blocks, skip=skip)
    here.extend(ticket.ticket_id, source.blocks(request.request_id))
    here.seal(ticket.ticket_id, Sealed(len(request.tokens), 0))
    arrived: Sequence[Arrived] = ()
    while not arrived:
        arrived = there.poll()
    assert arrived[0].error is None
    source.release(request.request_id)
    return reserved.filled


def split(
    source: TorchEngine, sink: TorchEngine, asked: list[Request]
) -> tuple[int, list[int]]:
    """The tokens that needed no transfer, and all that was said."""
    first, known, said = park(source, asked), 0, dict[RequestId, list[int]]()
    for request in asked:
        name = request.request_id
        known += fetch(source, sink, request, f"engine-{len(said)}")
        booked = sink.resume(name, [first[name]])
        said[name] = [token for one in booked for token in one.tokens]
    sink.schedule()
    for name, rest in drain(sink).items():
        said[name] += rest
    return known, [token for request in asked for token in said[request.request_id]]


@pytest.mark.parametrize(("prefill", "decode"), [(16, 32), (32, 16), (8, 32)])
@pytest.mark.parametrize("family", FAMILIES)
def test_split_is_one_engine(tmp_path: Path, family: str, prefill: int, decode: int) -> None:
    folder = make_checkpoint(tmp_path, family)
    source = load(folder, block_size=prefill, max_num_batched_tokens=24)
    sink, whole = load(folder, block_size=decode), load(folder)
    known = list[int]()
    for prompts in (PROMPTS, LONGER):
        asked = requests(prompts, GREEDY)
        expected = [token for answer in run(whole, asked) for token in answer]
        hits, said = split(source, sink, asked)
        known.append(hits)
        assert said == expected
    assert known[1] >= sum(len(tokens) // decode * decode for tokens in PROMPTS)
    assert_idle(source)
    assert_idle(sink)
