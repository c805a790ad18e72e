"""What `pdserve bench` makes of when the tokens of an answer came."""

from bench.load import Outcome


def test_tokens_that_come_at_once_do_not_hide_what_each_takes() -> None:
    outcome = Outcome()
    outcome.add(1.0, [3.0, 3.0, 3.0, 9.0])
    assert (outcome.first_token, outcome.per_token) == ([2.0], [2.0])
    assert outcome.between_tokens == [0.0, 0.0, 6.0]


def test_of_one_token_there_is_no_time_for_each() -> None:
    outcome = Outcome()
    outcome.add(1.0, [3.0])
    assert (outcome.first_token, outcome.per_token, outcome.between_tokens) == ([2.0], [], [])
