"""What is foretold is what stood there before, and nobody foretells for nothing for long."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request, RequestId, Sampling
from engine.scheduling.drafting import LONGEST_REST, PATIENCE, Pace, draft_in_turn
from engine.scheduling.prompt_lookup import CANDIDATES, NgramDrafter, NgramIndex
from engine.scheduling.sequence import Sequence
from engine.settings import SpeculativeConfig

texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def sequence(*tokens: int) -> Sequence:
    return Sequence(Request(RequestId("r"), tokens, Sampling(1000)))


def draft(drafter: NgramDrafter, seq: Sequence, most: int) -> list[int]:
    length = drafter.wanted(seq, most)
    assert 0 <= length <= most
    return list(drafter.draft({seq: length})[seq]) if length else []


def likeness(tokens: list[int], place: int, longest: int) -> int:
    """How many tokens before `place` are those before the end."""
    alike = 0
    while alike < min(longest, place) and tokens[place - alike - 1] == tokens[-alike - 1]:
        alike += 1
    return alike


@given(tokens=texts, n=st.integers(1, 3), more=st.integers(0, 3), parts=st.integers(1, 5))
def test_the_index_finds_what_a_search_finds(
    tokens: list[int], n: int, more: int, parts: int
) -> None:
    index = NgramIndex(n)
    for end in range(parts, len(tokens), parts):
        index.add_tokens(tokens[:end])
    index.add_tokens(tokens)
    places = [
        place for place in range(n, len(tokens)) if likeness(tokens, place, n + more) >= n
    ][-CANDIDATES:]
    best = max(
        places, key=lambda place: (likeness(tokens, place, n + more), place), default=None
    )
    assert index.find(tokens, n + more) == best


def test_what_followed_before_is_foretold() -> None:
    drafter, seq = NgramDrafter(SpeculativeConfig()), sequence(1, 2, 3, 4, 5, 9, 1, 2)
    assert draft(drafter, seq, 8) == [3, 4]
    assert draft(drafter, seq, 1) == [3]
    assert draft(drafter, sequence(1, 2, 3), 8) == []
    assert draft(drafter, sequence(1), 8) == []


def test_what_goes_in_circles_is_foretold_in_circles() -> None:
    drafter, seq = NgramDrafter(SpeculativeConfig()), sequence(*[1, 2, 3] * 3)
    for length in (2, 4, 8, 8):
        drafted = draft(drafter, seq, 100)
        assert drafted == ([1, 2, 3] * 3)[:length]
        drafter.record_acceptance(seq, length, length)


def test_a_longer_match_is_believed_before_a_later_one() -> None:
    drafter = NgramDrafter(SpeculativeConfig())
    assert draft(drafter, sequence(5, 1, 2, 8, 6, 1, 2, 7, 5, 1, 2), 1) == [8]
    assert draft(drafter, sequence(5, 1, 2, 8, 6, 1, 2, 7, 4, 1, 2), 1) == [7]
    assert draft(drafter, sequence(1, 2, 3, 4, 8, 9, 2, 3, 4, 7, 1, 2, 3, 4), 1) == [8]


def test_a_draft_that_comes_true_in_part_makes_the_next_one_as_long() -> None:
    drafter, seq = NgramDrafter(SpeculativeConfig()), sequence(*[1, 2, 3] * 3)
    drafter.record_acceptance(seq, 8, 3)
    assert len(draft(drafter, seq, 100)) == 4
    drafter.record_acceptance(seq, 4, 0)
    assert len(draft(drafter, seq, 100)) == 2


def test_who_is_wrong_rests_each_time_longer_until_it_is_right() -> None:
    drafter, seq, tries = NgramDrafter(SpeculativeConfig()), sequence(*[1, 2] * 4), list[int]()
    for step in range(3000):
        if drafted := draft(drafter, seq, 8):
            tries.append(step)
            drafter.record_acceptance(seq, len(drafted), 0)
        seq.tokens += [1, 2]
    assert tries[:PATIENCE] == list(range(PATIENCE))
    rests = [after - before for before, after in pairwise(tries)]
    assert rests == sorted(rests)
    assert rests[-1] == (1 << LONGEST_REST) // 2
    assert len(tries) < 3000 / 50
    seq.tokens += [1, 2] * 256
    drafter.record_acceptance(seq, len(draft(drafter, seq, 8)), 1)
    assert draft(drafter, seq, 8)


def test_never_more_than_was_asked_for() -> None:
    drafter = NgramDrafter(SpeculativeConfig(num_speculative_tokens=1))
    seq = sequence(*[1, 2] * 9)
    assert draft(drafter, seq, 100) == [1]
    drafter.record_acceptance(seq, 1, 1)
    assert draft(drafter, seq, 100) == [1]


def test_however_often_it_was_wrong_a_sequence_drafts_a_token_again() -> None:
    pace, seq = Pace.starting(2, 8), sequence(1)
    for _ in range(5):
        pace.record(seq, 1, 0)
    seq.tokens += [1] * pace.rests_until
    assert pace.allowed(seq, 8) == 1


def test_wrong_drafts_with_a_right_one_between_them_are_not_in_a_row() -> None:
    pace, seq = Pace.starting(2, 8), sequence(1)
    for accepted in [0] * (PATIENCE - 1) + [1] + [0] * (PATIENCE - 1):
        pace.record(seq, 2, accepted)
    assert pace.allowed(seq, 8) > 0
    pace.record(seq, 2, 0)
    assert pace.allowed(seq, 8) == 0


def test_drafting_rests_once_patience_is_at_an_end_and_for_as_long_as_it_says() -> None:
    pace, seq = Pace.starting(2, 8), sequence(1)
    for _ in range(PATIENCE - 1):
        pace.record(seq, 2, 0)
    assert pace.allowed(seq, 8) > 0
    pace.record(seq, 1, 0)
    assert pace.allowed(seq, 8) == 0
    seq.tokens += [1] * ((1 << PATIENCE) - 1)
    assert pace.allowed(seq, 8) == 0
    seq.tokens += [1]
    assert pace.allowed(seq, 8) > 0


def test_a_batch_rests_until_one_token_more_lets_any_of_its_sequences_draft() -> None:
    drafter = NgramDrafter(SpeculativeConfig(num_speculative_tokens=4))
    first, other = sequence(1), sequence(1)
    for seq in [first, other] * PATIENCE:
        drafter.record_acceptance(seq, 1, 0)
    first.tokens += [1] * ((1 << PATIENCE) - 2)
    assert drafter.rests([first, other])
    first.tokens += [1]
    assert not drafter.rests([first, other])


def test_as_many_earlier_places_are_compared_as_it_says() -> None:
    for between, found in ((CANDIDATES - 1, 2), (CANDIDATES, 2 + 2 * CANDIDATES)):
        others = [token for other in range(between) for token in (10 + other, 1)]
        tokens = [9, 1, *others, 9, 1]
        index = NgramIndex(1)
        index.add_tokens(tokens)
        assert index.find(tokens, longest=5) == found


def test_drafts_in_turn_end_when_there_are_enough_or_with_the_answer() -> None:
    goes_on, asked = sequence(1), list[int]()
    ends = Sequence(Request(RequestId("ends"), (1,), Sampling(9, stop_token_ids=(7,))))

    def draw_behind(drafts: Mapping[Sequence, Seq[int]]) -> dict[Sequence, int]:
        asked.append(len(drafts))
        return {seq: tokens[-1] + 1 for seq, tokens in drafts.items()}

    drafts = draft_in_turn({goes_on: 5, ends: 6}, {goes_on: 3, ends: 3}, draw_behind)
    assert drafts == {goes_on: [5, 6, 7], ends: [6, 7]}
    assert asked == [2, 1]
