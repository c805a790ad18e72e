"""Whoever reads the state, and whenever, knows what is written on it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from proxy.workers.shared_state import MAX_TOMBSTONES, SharedState

NAMES = st.sampled_from(["a", "b", "c"])
DEEDS = st.lists(
    st.one_of(
        st.tuples(NAMES, st.none() | st.binary(max_size=2)),
        st.sampled_from(["read", "come late"]),
    )
)


@given(DEEDS)
def test_every_reader_comes_to_know_the_newest_of_each_name(deeds: list[Any]) -> None:
    state, written = SharedState(), dict[str, bytes]()
    readers = [Reader()]
    for deed in deeds:
        match deed:
            case (str(name), value):
                state.put("kind", name, value)
                written.pop(name, None)
                if isinstance(value, bytes):
                    written[name] = value
            case "read":
                readers[0].read(state)
            case _:
                readers.append(Reader())
                readers[-1].read(state)
    for reader in readers:
        reader.read(state)
        assert reader.known == written


def test_a_name_is_told_once_however_often_it_was_written() -> None:
    state = SharedState()
    for number in range(100):
        state.put("kind", "a", bytes([number]))
    assert [entry.value for entry in state.entries_since(0)] == [bytes([99])]
    assert not state.entries_since(state.version)


def test_what_readers_forget_by_themselves_is_not_told() -> None:
    state = SharedState()
    state.put("kind", "a", b"1")
    state.forget("kind", "a")
    assert not state.entries_since(0)


def test_what_was_taken_away_is_not_remembered_for_ever() -> None:
    state = SharedState()
    seen = state.put("kind", "first", b"")
    for number in range(2 * MAX_TOMBSTONES):
        state.put("kind", str(number), None)
    assert len(state.entries_since(seen)) == MAX_TOMBSTONES
    assert [entry.name for entry in state.entries_since(0)] == ["first"]


class Reader:
    """A worker: what it knows, and up to which version."""

    def __init__(self) -> None:
        self.version, self.known = 0, dict[str, bytes]()

    def read(self, state: SharedState) -> None:
        for entry in state.entries_since(self.version):
            self.known.pop(entry.name, None)
            if entry.value is not None:
                self.known[entry.name] = entry.value
        self.version = state.version
