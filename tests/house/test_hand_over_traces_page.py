"""The page of traces shows what the books of a hand-over do now."""

from tests.hand_over_traces import PAGE, page


def test_its_traces_are_those_of_the_code() -> None:
    """Else: `python -m tests.hand_over_traces`."""
    written = PAGE.read_text()
    assert page(written) == written
