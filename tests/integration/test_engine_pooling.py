"""A decoder's vectors are transformers', whatever runs beside them, in whatever chunks."""

from pathlib import Path

import pytest
import torch

from engine.errors import EngineError, RequestTooLong, UnsupportedTask, UnusableCheckpoint
from engine.request import PoolingRequest, RequestId
from tests.fakes.checkpoints import edit_config, make_checkpoint
from tests.fakes.driver import assert_idle, drain, eager, load, prompt, requests, run
from tests.fakes.pooling import (
    embed,
    hidden_states,
    pooled_by_hand,
    poolings,
    vectors,
    write_modules,
)

PROMPTS = [prompt(length) for length in (1, 5, 16, 17, 40, 90)]
KINDS = ("last", "mean", "cls")
Folders = dict[str, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    made = {}
    for kind in KINDS:
        made[kind] = make_checkpoint(tmp_path_factory.mktemp(kind), "qwen3")
        write_modules(made[kind], kind)
    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [7, 512])
@pytest.mark.parametrize("cache", [True, False], ids=["cache", "no cache"])
def test_vectors_are_transformers(folders: Folders, kind: str, chunk: int, cache: bool) -> None:
    engine = load(
        folders[kind],
        max_num_batched_tokens=chunk,
        block_size=4,
        max_num_seqs=3,
        enable_prefix_caching=cache,
    )
    for _ in range(2):  # the second time, from the cache
        for tokens, found in zip(PROMPTS, embed(engine, poolings(PROMPTS)), strict=True):
            wanted = pooled_by_hand(hidden_states(folders[kind], tokens), kind)
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
        assert_idle(engine)


def test_a_mean_is_of_all_chunks_and_not_only_in_its_direction(folders: Folders) -> None:
    """Once it is normalised, its length says nothing any more."""
    engine = load(folders["mean"], max_num_batched_tokens=7)
    found = embed(engine, poolings(PROMPTS, activation=False))
    for tokens, vector in zip(PROMPTS, found, strict=True):
        wanted = hidden_states(folders["mean"], tokens).mean(0, keepdim=True)
        torch.testing.assert_close(vector, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_beside_answers_and_preempted_nothing_changes(folders: Folders, kind: str) -> None:
    tight = {"max_model_len": 128, "kv_cache_memory_bytes": 148 * 256 * 2}
    engine = eager(load(folders[kind], max_num_batched_tokens=24, block_size=4, **tight))
    alone = load(folders[kind])
    wanted, answers = embed(alone, poolings(PROMPTS)), run(alone, requests(PROMPTS))
    found = dict[str, torch.Tensor]()
    asked = [(a, p) for a, p in zip(requests(PROMPTS), poolings(PROMPTS), strict=True)]
    for answer, pooling in asked:
        engine.generate(answer)
        engine.embed(pooling)
    said: dict[str, list[int]] = {}
    engine.schedule()
    while engine.load.waiting or engine.load.running:
        result = engine.step()
        found |= {one.request_id: vectors(one) for one in result.pooled}
        for one in result.sampled:
            said.setdefault(one.request_id, []).extend(one.tokens)
        engine.schedule()
    assert engine.load.preemptions
    assert [said[answer.request_id] for answer, _ in asked] == answers
    for (_, pooling), vector in zip(asked, wanted, strict=True):
        torch.testing.assert_close(found[pooling.request_id], vector, atol=1e-5, rtol=0)
    assert_idle(engine)


def test_the_last_token_comes_from_the_cache_and_the_mean_does_not(folders: Folders) -> None:
    for kind, cached in (("last", 88), ("mean", 0), ("cls", 0)):
        engine = load(folders[kind], block_size=4)
        embed(engine, poolings([PROMPTS[-1]]))
        engine.embed(poolings([PROMPTS[-1]])[0])
        (admitted,) = engine.schedule()
        assert admitted.cached_tokens == cached
        drain(engine)


def test_each_token_has_a_vector_of_its_own(folders: Folders) -> None:
    engine = load(folders["last"], max_num_batched_tokens=7, block_size=4)
    embed(engine, poolings(PROMPTS))
    for tokens, found in zip(
        PROMPTS,
        embed(engine, poolings(PROMPTS, task="token_embed", activation=False)),
        strict=True,
    ):
        wanted = hidden_states(folders["last"], tokens)
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_a_request_that_is_taken_back_leaves_nothing(folders: Folders) -> None:
    engine = load(folders["mean"], max_num_batched_tokens=7, block_size=4)
    (request,) = poolings([PROMPTS[-1]])
    engine.embed(request)
    engine.schedule()
    engine.step()
    assert engine.load.free_blocks < engine.load.total_blocks
    engine.release(request.request_id)
    assert not engine.pooler._kept
    assert_idle(engine)


def test_a_cut_embedding_is_normalised_anew(folders: Folders) -> None:
    edit_config(folders["cls"], {"matryoshka_dimensions": [8, 16]})
    try:
        engine = load(folders["cls"])
        whole, cut = (
            embed(engine, poolings([PROMPTS[4]], dimensions=size))[0] for size in (None, 8)
        )
        wanted = torch.nn.functional.normalize(whole[:, :8], dim=-1)
        torch.testing.assert_close(cut, wanted)
        with pytest.raises(
            UnsupportedTask, match="dimensions 9 is not one of 8, 16"
        ) as refused:
            engine.embed(poolings([PROMPTS[4]], dimensions=9)[0])
        assert refused.value.param == "dimensions"
    finally:
        edit_config(folders["cls"], {"matryoshka_dimensions": None})


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        (PoolingRequest(RequestId("x"), (1,), "classify"), UnsupportedTask),
        (PoolingRequest(RequestId("x"), (1,), dimensions=8), UnsupportedTask),
        (PoolingRequest(RequestId("x"), prompt(513)), RequestTooLong),
        (PoolingRequest(RequestId("x"), (384,)), EngineError),
        (PoolingRequest(RequestId("x"), ()), EngineError),
    ],
)
def test_what_cannot_be_done_is_refused(
    folders: Folders, asked: PoolingRequest, error: type[EngineError]
) -> None:
    engine = load(folders["last"])
    with pytest.raises(error):
        engine.embed(asked)
    assert_idle(engine)


def test_all_of_the_context_can_be_pooled(folders: Folders) -> None:
    engine = load(folders["last"])
    assert len(embed(engine, poolings([prompt(512)]))[0]) == 1


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            "1_Pooling/config.json",
            '{"pooling_mode_max_tokens": true}',
            "pooling_mode_max_tokens",
        ),
        ("1_Pooling/config.json", "{}", "nothing"),
        ("modules.json", '[{"type": "x.LayerNorm", "path": "2_LayerNorm"}]', "LayerNorm"),
        ("modules.json", "[3]", "modules.json"),
    ],
)
def test_what_is_pooled_otherwise_is_refused(
    tmp_path: Path, file: str, text: str, said: str
) -> None:
    make_checkpoint(tmp_path)
    write_modules(tmp_path, "mean")
    (tmp_path / file).write_text(text)
    with pytest.raises(UnusableCheckpoint, match=said):
        load(tmp_path)
