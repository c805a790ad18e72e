"""Whoever reads the board, and whenever, knows what is written on it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.workers.board import MOST_TAKEN_AWAY, Board

NAMES = st.sampled_from(["a", "b", "c"])
DEEDS = st.lists(
    st.one_of(
        st.tuples(NAMES, st.none() | st.binary(max_size=2)),
        st.sampled_from(["read", "come late"]),
    )
)


@given(DEEDS)
def test_every_reader_comes_to_know_the_newest_of_each_name(deeds: list[Any]) -> None:
    board, written = Board(), dict[str, bytes]()
    readers = [Reader()]
    for deed in deeds:
        match deed:
            case (str(name), value):
                board.put("kind", name, value)
                written.pop(name, None)
                if isinstance(value, bytes):
                    written[name] = value
            case "read":
                readers[0].read(board)
            case _:
                readers.append(Reader())
                readers[-1].read(board)
    for reader in readers:
        reader.read(board)
        assert reader.known == written


def test_a_name_is_told_once_however_often_it_was_written() -> None:
    board = Board()
    for number in range(100):
        board.put("kind", "a", bytes([number]))
    assert [entry.value for entry in board.since(0)] == [bytes([99])]
    assert not board.since(board.version)


def test_what_readers_forget_by_themselves_is_not_told() -> None:
    board = Board()
    board.put("kind", "a", b"1")
    board.forget("kind", "a")
    assert not board.since(0)


def test_what_was_taken_away_is_not_remembered_for_ever() -> None:
    board = Board()
    seen = board.put("kind", "first", b"")
    for number in range(2 * MOST_TAKEN_AWAY):
        board.put("kind", str(number), None)
    assert len(board.since(seen)) == MOST_TAKEN_AWAY
    assert [entry.name for entry in board.since(0)] == ["first"]


class Reader:
    """A worker: what it knows, and up to which version."""

    def __init__(self) -> None:
        self.version, self.known = 0, dict[str, bytes]()

    def read(self, board: Board) -> None:
        for entry in board.since(self.version):
            self.known.pop(entry.name, None)
            if entry.value is not None:
                self.known[entry.name] = entry.value
        self.version = board.version
