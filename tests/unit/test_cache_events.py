"""Who hears what enters and leaves the prefix cache knows what is in it."""

from random import Random

import pytest

from engine.cache_events import BlocksRemoved, BlocksStored
from engine.request import Request, RequestId, Sampling
from engine.scheduling.cache_log import CacheLog
from tests.fakes.cache_index import CacheIndex
from tests.fakes.engine import FakeEngine

SIZE = 4


def engine_with_log(blocks: int = 24) -> FakeEngine:
    engine = FakeEngine(blocks=blocks, block_size=SIZE, watermark=0)
    engine.kv.log = CacheLog(SIZE)
    return engine


def request(name: str, tokens: tuple[int, ...], most: int = 1, salt: str = "") -> Request:
    return Request(RequestId(name), tokens, Sampling(most, ignore_eos=True), cache_salt=salt)


def run(engine: FakeEngine, *asked: Request) -> list[BlocksStored | BlocksRemoved]:
    for one in asked:
        engine.generate(one)
    events = list[BlocksStored | BlocksRemoved]()
    while (result := engine.turn()).num_tokens:
        events += result.cache_events
    return events + list(result.cache_events)


@pytest.mark.parametrize("seed", range(8))
def test_it_knows_every_block_and_its_tokens(seed: int) -> None:
    """While blocks are evicted, prompts share prefixes, and sequences are preempted."""
    chance, engine, index = Random(seed), engine_with_log(blocks=16), CacheIndex(SIZE)
    trunks = [tuple(chance.randrange(50) for _ in range(30)) for _ in range(3)]
    removed = 0
    for turn in range(60):
        asked = [
            request(
                f"{turn}/{one}",
                chance.choice(trunks)[: chance.randrange(1, 31)]
                + tuple(chance.randrange(50) for _ in range(chance.randrange(6))),
                chance.randrange(1, 20),
                chance.choice(["", "salt"]),
            )
            for one in range(chance.randrange(6))
        ]
        for event in run(engine, *asked):
            removed += isinstance(event, BlocksRemoved)
            index.hear(event)
        assert index.blocks.keys() == engine.kv.pool._block_of.keys()
        for one in asked:
            keys = engine.keys(one)
            known = engine.known(keys)
            if known:
                assert index.prefixes[keys[known - 1]] == one.prompt[: known * SIZE]
    assert removed
    assert engine.sequences.preemptions


def test_a_stored_block_is_told_once_with_its_parent() -> None:
    engine = engine_with_log()
    (first,) = run(engine, request("a", tuple(range(9))))
    assert isinstance(first, BlocksStored)
    assert (first.parent, first.tokens, first.adapter, first.salt) == (
        None,
        tuple(range(8)),
        None,
        "",
    )
    assert not run(engine, request("again", tuple(range(9))))
    (more,) = run(engine, request("longer", (*range(8), 9, 9, 9, 9, 9)))
    assert more == BlocksStored(more.keys, first.keys[-1], (9, 9, 9, 9))


def test_another_salt_is_another_block() -> None:
    engine = engine_with_log()
    plain, salted = (
        run(engine, request(salt, (1, 2, 3, 4, 5), salt=salt)) for salt in ("", "s")
    )
    assert [
        (one.tokens, one.salt) for one in (*plain, *salted) if isinstance(one, BlocksStored)
    ]
    assert plain != salted


def test_what_came_from_another_node_is_told_when_its_tokens_are_known() -> None:
    """It comes by its keys alone; if it leaves before somebody uses it, nobody hears of it."""
    engine, asked = engine_with_log(blocks=4), request("a", tuple(range(9)))
    keys = engine.keys(asked)
    assert engine.borrow("loan", keys, 0)
    engine.keep("loan")
    assert not engine.turn().cache_events
    (used,) = run(engine, asked)
    assert used == BlocksStored(tuple(keys), None, tuple(range(8)))

    engine = engine_with_log(blocks=4)
    assert engine.borrow("loan", keys, 0)
    engine.keep("loan")
    events = run(engine, request("other", tuple(range(50, 65))))
    assert [type(one) for one in events] == [BlocksStored]
    assert not engine.known(keys)


def test_without_a_log_nothing_is_told() -> None:
    engine = FakeEngine(block_size=SIZE)
    assert not run(engine, request("a", tuple(range(9))))
