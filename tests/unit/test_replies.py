"""Which of a node's registrations are answered."""

from discovery.replies import MOST_CONNECTIONS, REPLY_EVERY, ReplySchedule


def test_the_first_of_a_connection_is_answered_and_one_of_a_few_after_it() -> None:
    answers = ReplySchedule()
    due = [answers.due(b"one") for _ in range(2 * REPLY_EVERY + 1)]
    assert [number for number, is_due in enumerate(due) if is_due] == [
        0,
        REPLY_EVERY,
        2 * REPLY_EVERY,
    ]
    assert answers.due(b"another")


def test_memory_is_bounded_and_who_is_forgotten_is_answered_anew() -> None:
    answers = ReplySchedule()
    assert all(answers.due(str(number).encode()) for number in range(MOST_CONNECTIONS + 1))
    assert answers.due(b"0")
    assert not answers.due(b"2")
    assert len(answers._counts) == MOST_CONNECTIONS
