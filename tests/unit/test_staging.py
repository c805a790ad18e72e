"""A batch's numbers are where they belong on the device, and always at the same addresses."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.attention.paged import Span
from engine.attention.plan import Plan, RowSampling, SamplingPlan
from engine.running.staging import (
    ALIGNMENT,
    PADDING,
    TABLE_STEP,
    BatchSize,
    DeviceFields,
    Staging,
    layout,
    table_blocks,
)

BLOCK = 4
MOST = BatchSize(40, 9, 16)


@pytest.fixture
def staging() -> Staging:
    return Staging(MOST, BLOCK, torch.device("cpu"))


def told(fields: DeviceFields) -> dict[str, list[object]]:
    return {name: tensor.tolist() for name, tensor in fields._asdict().items()}


def singles(*blocks_and_starts: tuple[Sequence[int], int]) -> Plan:
    spans = [Span(start, 1, blocks) for blocks, start in blocks_and_starts]
    return Plan(range(70, 70 + len(spans)), spans, (), range(len(spans)))


def test_every_row_has_its_place(staging: Staging) -> None:
    plan = Plan(
        [50, 51, 60, 61, 62, 63],
        [Span(5, 1, [3, 9])],
        [Span(2, 3, [4, 8]), Span(0, 2, [1])],
        [0, 3],
    )
    staged = staging.stage(BatchSize(6, 3, 16), plan)
    fields = told(staged)
    assert fields["tokens"] == plan.tokens
    assert fields["positions"] == [5, 2, 3, 4, 0, 1]
    assert fields["picks"][:2] == [0, 3]
    assert fields["slots"] == [37, 18, 19, 32, 4, 5]
    assert fields["lengths"] == [6, 5, 2]
    assert fields["firsts"] == [0, 3, 5, 5]
    assert fields["sources"] == [PADDING] * 6
    assert staged.tables[:2, :2].tolist() == [[3, 9], [4, 8]]


def test_rows_beyond_a_batch_stand_for_nothing(staging: Staging) -> None:
    size = BatchSize(4, 4, 16)
    staging.stage(size, singles(*[([7, 8], 6)] * 4))
    fields = told(staging.stage(size, singles(([5], 2))))
    assert fields["slots"] == [22, *[PADDING] * 3]
    assert fields["lengths"] == [3, 0, 0, 0]
    assert fields["positions"] == [2, 0, 0, 0]


def test_batches_of_one_size_lie_at_the_same_addresses(staging: Staging) -> None:
    size = BatchSize(2, 2, 16)
    before = staging.stage(size, singles(([1], 0), ([2], 0)))
    between = staging.stage(BatchSize(3, 1, 16), Plan([1, 2, 3], (), [Span(0, 3, [5])], ()))
    after = staging.stage(size, singles(([6], 3), ([7], 1)))
    assert [one.data_ptr() for one in before] == [one.data_ptr() for one in after]
    assert told(before) == told(after)
    assert between.tokens.data_ptr() == before.tokens.data_ptr()


def test_a_table_that_grew_is_complete_and_another_one_is_written_anew(
    staging: Staging,
) -> None:
    size, first, second = BatchSize(2, 2, 16), [1, 2], [5]
    staging.stage(size, singles((first, 7), (second, 0)))
    first.append(9)
    fields = staging.stage(size, singles((first, 8), (second, 1)))
    assert fields.tables[0, :3].tolist() == [1, 2, 9]
    second = [6, 7, 8]  # it was put back, and has other blocks
    fields = staging.stage(size, singles((second, 9), (first, 9)))
    assert fields.tables[:, :3].tolist() == [[6, 7, 8], [1, 2, 9]]
    assert fields.slots.tolist() == [33, 37]


def test_what_another_size_wrote_over_is_written_again(staging: Staging) -> None:
    size, blocks = BatchSize(1, 1, 16), [1, 2, 3]
    staging.stage(size, singles((blocks, 8)))
    staging.stage(MOST, singles(*[([0], 0)] * 9))
    assert staging.stage(size, singles((blocks, 9))).tables[0, :3].tolist() == blocks


def test_a_table_goes_with_its_sequence_to_another_size(staging: Staging) -> None:
    """It is complete there, and in the first size once more."""
    blocks = [1, 2, 3]
    for sequences in (1, 2, 1, 9, 2):
        others = [([7], 0)] * (sequences - 1)
        size = BatchSize(4 * sequences, sequences, 16)
        fields = staging.stage(size, singles((blocks, 9), *others))
        assert fields.tables[0, :3].tolist() == blocks
        assert fields.slots[0] == 3 * BLOCK + 1


def test_a_token_that_was_drawn_is_taken_once(staging: Staging) -> None:
    """Its row says so no more in a later batch."""
    size, plan = BatchSize(3, 3, 16), singles(([1], 0), ([2], 0))
    drawn = told(staging.stage(size, plan._replace(sources=[1, 0])))
    assert drawn["sources"] == [1, 0, PADDING]
    assert told(staging.stage(size, plan))["sources"] == [PADDING] * 3


def test_each_draw_has_its_own_numbers(staging: Staging) -> None:
    """Fewer draws than the batch before had say nothing of the rest."""
    draws = [
        RowSampling(0.5, 7, 0.25, 0.125, (2**32 - 1, 5), 3),
        RowSampling(2.0, 0, 1.0, 0.5, (0, 2**31), 44),
    ]
    size, plan = BatchSize(3, 3, 16), singles(([1], 0), ([2], 0))
    for some in (draws, draws[::-1], draws[1:]):
        staged = staging.stage(size, plan._replace(sampling=SamplingPlan(some, None, ())))
        columns = [column.tolist() for column in staged.drawn_by(len(some))]
        numbers = [list(one) for one in zip(*some, strict=True)]
        numbers[4] = [list(key) for key in numbers[4]]
        assert columns == numbers


def test_a_slot_may_be_further_than_32_bits_count(staging: Staging) -> None:
    fields = staging.stage(BatchSize(1, 1, 16), singles(([2**30 + 1], 3)))
    assert fields.slots.tolist() == [2**32 + 4 + 3]


def test_blocks_of_states_lie_beside_those_of_kv() -> None:
    size = BatchSize(4, 3, 16, states=2)
    staging = Staging(size, BLOCK, torch.device("cpu"))
    plan = Plan(
        [50, 60, 61],
        [Span(5, 1, [3, 9], state=[7, 1])],
        [Span(2, 2, [4], state=[2, 6])],
        [0],
    )
    staged = staging.stage(size, plan)
    assert staged.states[:2].tolist() == [[7, 1], [2, 6]]
    assert staged.metadata.states is staged.states
    assert staged.states.dtype is torch.int32
    assert staged.tables[:2, :2].tolist() == [[3, 9], [4, 0]]
    assert staging.clear(size).metadata.lengths.tolist() == [0, 0, 0]


@pytest.mark.parametrize("adapters", [0, 3])
def test_without_states_nothing_lies_elsewhere(adapters: int) -> None:
    fields = layout(BatchSize(5, 3, 16, adapters))
    assert fields.states.begin == fields.states.end == fields.tables.begin


@given(st.integers(1, 99), st.integers(1, 20), st.integers(1, 40), st.integers(0, 3))
def test_fields_are_aligned_and_apart(
    tokens: int, sequences: int, blocks: int, states: int
) -> None:
    fields = layout(BatchSize(tokens, sequences, table_blocks(blocks), states=states))
    assert all(field.begin % ALIGNMENT == 0 for field in fields)
    assert all(one.end <= other.begin for one, other in pairwise(fields))
    assert blocks <= table_blocks(blocks) < blocks + TABLE_STEP


def test_nothing_is_staged_for_a_step_that_is_captured(staging: Staging) -> None:
    fields = told(staging.clear(BatchSize(2, 2, 16)))
    assert (fields["slots"], fields["lengths"]) == ([PADDING] * 2, [0, 0])
