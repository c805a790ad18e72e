"""Prompts of a model that keeps a state begin where another one's state was copied."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request, RequestId, Sampling
from engine.scheduling.watermark import Watermark
from tests.fakes.cluster import Cluster
from tests.fakes.model import alone
from tests.fakes.stateful import StatefulEngine

SYSTEM = tuple(range(8))


def request(name: str, tokens: tuple[int, ...], most: int = 3) -> Request:
    return Request(RequestId(name), tokens, Sampling(most))


def say(engine: StatefulEngine, *asked: Request) -> int:
    """Check all answers; returns how many tokens of prompts were computed."""
    before, answers = engine.load.prompt_tokens, {one.request_id: list[int]() for one in asked}
    for one in asked:
        engine.generate(one)
    while engine.load.running or engine.load.waiting:
        for sampled in engine.turn().sampled:
            answers[sampled.request_id] += sampled.tokens
    assert list(answers.values()) == [alone(one) for one in asked]
    assert engine.load.free_blocks == engine.load.total_blocks
    return engine.load.prompt_tokens - before


def test_the_next_turn_begins_where_the_last_prompt_ended() -> None:
    engine, first = StatefulEngine(block_size=4), tuple(range(10))
    assert say(engine, request("a", first)) == 10
    second = (*first, 40, 41, 42, 43, 44)
    assert say(engine, request("b", second)) == 15 - 8
    assert say(engine, request("c", (*second, 45))) == 16 - 12


def test_what_two_share_is_kept_for_the_third() -> None:
    engine = StatefulEngine(block_size=4)
    say(engine, request("a", (*SYSTEM, 20, 21, 22, 23, 24, 25)))
    assert say(engine, request("b", (*SYSTEM, 30, 31, 32, 33, 34, 35))) == 14
    assert say(engine, request("c", (*SYSTEM, 40, 41, 42, 43, 44, 45))) == 14 - 8


@pytest.mark.parametrize(("length", "computed"), [(12, 12), (13, 1)])
def test_a_snapshot_saves_a_step_or_is_not_made(length: int, computed: int) -> None:
    """Of 12 tokens the last is computed anyhow, so 8 of them would be saved."""
    engine, tokens = StatefulEngine(block_size=4, saves=12), tuple(range(length))
    assert say(engine, request("a", tokens)) == length
    assert say(engine, request("b", tokens)) == computed


def test_choices_compute_their_prompt_once() -> None:
    engine, tokens = StatefulEngine(block_size=4, chunk=99), tuple(range(18))
    choices = [
        Request(
            RequestId(f"c{at}"), tokens, Sampling(3, temperature=1, seed=7, sample_index=at)
        )
        for at in range(4)
    ]
    assert say(engine, *choices) == 18 + 3 * 2


def test_who_has_no_room_beside_a_snapshot_does_without() -> None:
    engine, tokens = StatefulEngine(blocks=11, block_size=4), tuple(range(22))
    assert say(engine, request("a", tokens, 2)) == 22
    assert say(engine, request("b", tokens, 2)) == 2
    assert say(engine, request("c", (*tokens, 1, 2, 3, 4, 5, 6))) == 28


def test_a_snapshot_of_which_a_block_was_evicted_is_none() -> None:
    engine, tokens = StatefulEngine(blocks=12, block_size=4), tuple(range(10))
    say(engine, request("a", tokens))
    most = engine.kv.pool.take(9)  # eight that are blank, and one that is evicted
    engine.kv.pool.release(most)
    assert say(engine, request("b", tokens)) == 10
    assert say(engine, request("c", tokens)) == 2


def turn_after(asked: Request, name: str, most: int = 3, new: int = 3) -> Request:
    """What a chat says next: all of it, and some tokens more."""
    return request(name, (*asked.prompt, *alone(asked), *[7] * new), most)


class Counting(StatefulEngine):
    """It counts the blocks that it copies."""

    copied = 0

    def _copy(self, source: int, target: int) -> None:
        self.copied += 1
        super()._copy(source, target)


@pytest.mark.parametrize(("saves", "computed", "copies"), [(4, 4, 4), (8, 8, 2), (12, 12, 1)])
def test_the_next_turn_begins_in_the_answer(saves: int, computed: int, copies: int) -> None:
    """A prompt of 10 tokens and 10 of the answer: 20 are computed, in five blocks."""
    engine, first = Counting(block_size=4, saves=saves), request("a", tuple(range(10)), 11)
    assert say(engine, first) == 10
    assert engine.copied == 2 * copies
    assert say(engine, turn_after(first, "b")) == computed


def test_an_answer_keeps_one_copy() -> None:
    engine, first = StatefulEngine(block_size=4), request("a", tuple(range(10)), 31)
    say(engine, first)
    cached = 10 + 2 + 2  # KV, and copies at the prompt's last boundary and the answer's
    blank = engine.kv.pool.take(64 - cached)
    engine.kv.pool.release(blank)
    assert say(engine, request("b", first.prompt)) == 2
    assert say(engine, turn_after(first, "c")) == 4


def test_an_aborted_answer_is_continued() -> None:
    engine, first = StatefulEngine(block_size=4), request("a", tuple(range(10)), 20)
    engine.generate(first)
    for _ in range(8):
        engine.turn()
    engine.schedule()
    engine.release(first.request_id)
    assert engine.load.free_blocks == engine.load.total_blocks
    assert say(engine, turn_after(first, "b")) == 33 - 16


def test_who_is_preempted_goes_on_behind_its_copy() -> None:
    engine, first = StatefulEngine(block_size=4), request("a", tuple(range(10)), 20)
    engine.generate(first)
    said = [token for _ in range(8) for one in engine.turn().sampled for token in one.tokens]
    engine.sequences.preempt(engine.sequences.known[first.request_id])
    before = engine.computed
    while engine.load.running or engine.load.waiting:
        said += [token for one in engine.turn().sampled for token in one.tokens]
    assert said == alone(first)
    assert engine.computed - before == 29 - 16
    assert engine.load.free_blocks == engine.load.total_blocks


def test_answers_are_not_copied_into_the_last_blocks() -> None:
    engine, first = Counting(blocks=9, block_size=4), request("a", tuple(range(10)), 11)
    say(engine, first)
    assert engine.copied == 2 * 3


async def test_decode_nodes_copy_answers() -> None:
    cluster = Cluster(engine=lambda: StatefulEngine(block_size=4, saves=8))
    first = request("a", tuple(range(10)), 11)
    assert await cluster.ask(first) == alone(first)
    engine = cluster.decodes[0].engine
    assert isinstance(engine, StatefulEngine)
    assert say(engine, turn_after(first, "b")) == 4


@given(
    chats=st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 12), st.integers(1, 12)),
        min_size=1,
        max_size=4,
    ),
    blocks=st.integers(24, 60),
    state_blocks=st.integers(1, 3),
    saves=st.integers(1, 12),
)
def test_chats_go_on_as_they_do_alone(
    chats: list[tuple[int, int, int]], blocks: int, state_blocks: int, saves: int
) -> None:
    engine = StatefulEngine(blocks=blocks, block_size=4, state_blocks=state_blocks, saves=saves)
    engine.sequences.watermark = Watermark(0.0, learns=False)
    asked = [request(str(at), (kind,) * n, m) for at, (kind, n, m) in enumerate(chats)]
    for turn in range(4):
        say(engine, *asked)
        asked = [
            turn_after(one, f"{turn}-{at}", chats[at][2], at + 1)
            for at, one in enumerate(asked)
        ]


async def test_a_decode_node_reads_the_state_alone_if_it_has_the_kv() -> None:
    cluster = Cluster(engine=lambda: StatefulEngine(block_size=4))
    for name in ("a", "b"):
        asked = request(name, tuple(range(10)), 5)
        assert await cluster.ask(asked) == alone(asked)
    assert not cluster.suspects
    (prefill,) = cluster.prefills
    assert prefill.engine.load.prompt_tokens == 10 + 2
    assert cluster.sinks[0].blocks_copied == (3 + 2) + (1 + 2)


@given(
    asked=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 2), st.integers(1, 12)),
        min_size=1,
        max_size=8,
    ),
    chunk=st.integers(1, 16),
    blocks=st.integers(14, 40),
    state_blocks=st.integers(1, 3),
    saves=st.integers(1, 12),
)
def test_whatever_is_shared_each_says_what_it_says_alone(
    asked: list[tuple[int, int, int, int]],
    chunk: int,
    blocks: int,
    state_blocks: int,
    saves: int,
) -> None:
    engine = StatefulEngine(
        blocks=blocks, block_size=4, chunk=chunk, state_blocks=state_blocks, saves=saves
    )
    engine.sequences.watermark = Watermark(0.0, learns=False)
    wanted = [
        request(str(at), (*[kind] * shared, *[kind + other] * rest), most=6)
        for at, (kind, shared, other, rest) in enumerate(asked)
    ]
    half = len(wanted) // 2
    for some in (wanted[:half], wanted[half:]):
        say(engine, *some)
