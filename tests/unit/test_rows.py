"""Which next tokens are begun before they are asked for, and which then are asked for."""

import pytest
from msgspec.structs import replace

from engine.kernels.token_logprobs import MOST_TOP_LOGPROBS
from engine.request import Grammar, PoolingRequest, Request, RequestId, Sampling
from engine.scheduling.chunk import Chunk, SampledTokens
from engine.scheduling.kv_manager import KvManager
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.sequence import Sequence
from engine.scheduling.sequence_manager import Limits, SequenceManager
from engine.stepping.rows import (
    DecodeRow,
    ScheduledRow,
    can_launch_ahead,
    match_batch,
    next_rows,
)

PLAIN = Sampling(max_tokens=8, temperature=0.7, top_p=0.9, ignore_eos=True)
SINGLE = {
    "plain": PLAIN,
    "penalised": replace(PLAIN, presence_penalty=0.5),
    "told of one": replace(PLAIN, logprobs=0),
    "told of as many as kernels take": replace(PLAIN, logprobs=MOST_TOP_LOGPROBS),
    "masked": replace(PLAIN, allowed_token_ids=(1, 2)),
    "biased": replace(PLAIN, logit_bias=((1, 2.0),)),
    "held back": replace(PLAIN, min_tokens=3),
    "grammar": replace(PLAIN, grammar=Grammar("regex", "a+")),
}


def sequence(name: str, tokens: int, sampling: Sampling = PLAIN) -> Sequence:
    return Sequence(
        Request(RequestId(name), tuple(range(ord(name), ord(name) + tokens)), sampling)
    )


def scheduler(blocks: int = 40) -> Scheduler:
    return Scheduler(
        SequenceManager(KvManager(blocks, 4, seed="x", prefix_cache=True), Limits(64, 8))
    )


def running(*sequences: Sequence, blocks: int = 40) -> tuple[Scheduler, list[Chunk]]:
    """After their prompts were run, and the batch behind that was chosen."""
    made = scheduler(blocks)
    for seq in sequences:
        made.add(seq)
    made.schedule()
    made.commit({seq.request_id: SampledTokens([7]) for seq in sequences})
    made.schedule()
    return made, list(made.batch)


@pytest.mark.parametrize("kind", SINGLE)
def test_single_next_tokens_can_be_begun(kind: str) -> None:
    _, (chunk,) = running(sequence("a", 5, SINGLE[kind]))
    assert can_launch_ahead(chunk)


@pytest.mark.parametrize("most", [-1, MOST_TOP_LOGPROBS + 1])
def test_what_kernels_do_not_tell_cannot(most: int) -> None:
    _, (chunk,) = running(sequence("a", 5, replace(PLAIN, logprobs=most)))
    assert not can_launch_ahead(chunk)


def test_nor_can_chunks_drafts_or_what_parks_or_is_pooled_or_scored() -> None:
    seq = sequence("a", 5)
    seq.computed = 4
    assert can_launch_ahead(Chunk(seq, 4, 1))
    assert not can_launch_ahead(Chunk(seq, 3, 2))
    assert not can_launch_ahead(Chunk(seq, 3, 1))
    assert not can_launch_ahead(Chunk(seq, 4, 1, [9]))
    seq.parks = True
    assert not can_launch_ahead(Chunk(seq, 4, 1))
    seq.parks, seq.prompt_logprobs = False, []
    assert not can_launch_ahead(Chunk(seq, 4, 1))
    seq.prompt_logprobs, seq.pooling = None, PoolingRequest(RequestId("a"), (1,), "embed")
    assert not can_launch_ahead(Chunk(seq, 4, 1))


def test_who_goes_on_takes_its_token_from_its_row() -> None:
    one, other = sequence("a", 5), sequence("b", 6)
    made, batch = running(one, other)
    rows = next_rows(made, [ScheduledRow(chunk, row) for row, chunk in enumerate(batch)], [])
    assert [(row.seq, row.start, row.source) for row in rows] == [(one, 6, 0), (other, 7, 1)]


def test_who_has_its_last_token_by_number_does_not_go_on() -> None:
    made, batch = running(sequence("a", 5, replace(PLAIN, max_tokens=2)))
    assert next_rows(made, [ScheduledRow(batch[0], 0)], []) == []


def test_who_comes_joins_with_the_token_it_has() -> None:
    one, other = sequence("a", 5), sequence("b", 6)
    made, batch = running(one, other)
    rows = next_rows(made, [ScheduledRow(batch[0], 0)], [batch[1]])
    assert (rows[1].seq, rows[1].start, rows[1].token, rows[1].source) == (other, 6, 7, None)


def test_who_has_failed_does_not_go_on() -> None:
    one, other = sequence("a", 5), sequence("b", 6)
    made, batch = running(one, other)
    one.failure = "nothing fits"
    rows = next_rows(made, [ScheduledRow(chunk, row) for row, chunk in enumerate(batch)], [])
    assert [row.seq for row in rows] == [other]


def test_nobody_is_deprived_of_a_block() -> None:
    """Eight tokens fill two blocks; the only one that is free may be wanted by others."""
    seq = sequence("a", 6, replace(PLAIN, max_tokens=6))
    made, batch = running(seq, blocks=3)
    assert made.try_reserve_position(seq, 7)
    assert not made.try_reserve_position(seq, 8)
    seq.computed = 7
    assert [row.start for row in next_rows(made, [ScheduledRow(batch[0], 0)], [])] == [7]


def test_a_block_is_taken_early_if_one_stays_free_for_who_runs() -> None:
    seq = sequence("a", 6, replace(PLAIN, max_tokens=6))
    made, _ = running(seq, blocks=4)
    assert made.try_reserve_position(seq, 8)
    assert (len(seq.blocks), made.load.free_blocks) == (3, 1)


def test_what_was_begun_is_chosen_where_all_is_as_it_was() -> None:
    one, other = sequence("a", 5), sequence("b", 6)
    _, batch = running(one, other)
    begun = [DecodeRow.of(batch[1]), DecodeRow.of(batch[0])]
    assert match_batch(begun, batch) == (
        [ScheduledRow(batch[0], 1), ScheduledRow(batch[1], 0)],
        [],
    )
    assert match_batch(begun[:1], batch) == ([ScheduledRow(batch[1], 0)], [batch[0]])
    assert match_batch([begun[0]._replace(start=99)], batch) == ([], batch)


def test_what_has_drafts_now_was_not_begun() -> None:
    seq = sequence("a", 5)
    _, (chunk,) = running(seq)
    drafted = [Chunk(seq, chunk.start, 1, [9])]
    assert match_batch([DecodeRow.of(chunk)], drafted) == ([], drafted)


def test_who_was_put_back_meanwhile_is_not_taken_for_what_it_was() -> None:
    """Its next token may stand at the same place, but in other blocks."""
    seq = sequence("a", 5)
    _, batch = running(seq)
    begun = [DecodeRow.of(batch[0])]
    seq.blocks = list(seq.blocks)
    assert match_batch(begun, batch) == ([], batch)


def test_what_was_not_run_is_chosen_again() -> None:
    one, other = sequence("a", 5), sequence("b", 6)
    made, batch = running(one, other)
    made.keep_in_batch([batch[0]])
    result = made.commit({one.request_id: SampledTokens([3])})
    assert [said.request_id for said in result.sampled] == [one.request_id]
    assert result.num_tokens == 1
    made.schedule()
    assert {(chunk.seq.request_id, chunk.start) for chunk in made.batch} == {("a", 6), ("b", 6)}
