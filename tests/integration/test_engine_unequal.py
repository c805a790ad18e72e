"""Engines with blocks of different sizes say what one says, whatever KV their models keep."""

from pathlib import Path

import pytest

from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.driver import GREEDY, assert_idle, load, prompt, requests, run
from tests.fakes.fetched import split

FAMILIES = ["llama", "mistral", "gemma3_text", "gpt_oss", "deepseek_v3", "glm4_moe"]
PROMPTS = [prompt(length) for length in (1, 15, 16, 17, 31, 32, 33, 48, 100)]
LONGER = [(*tokens, *prompt(21, seed=8)) for tokens in PROMPTS]  # they begin as the others


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
