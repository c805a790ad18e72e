"""The page of models says what the tests run, and the tests run what it says."""

from pathlib import Path

from tests.fakes.families import CASES, covered
from tests.parity import PAGE, page

SUITES = ("test_parity.py", "test_families.py")
INTEGRATION = Path(__file__).parents[1] / "integration"


def test_the_page_is_made_of_the_tests() -> None:
    """Else: `python -m tests.parity`."""
    assert PAGE.read_text() == page()


def test_no_comparison_is_claimed_twice() -> None:
    assert len({*covered()}) == len([*covered()])
    names = [(case.family, case.name) for case in CASES]
    assert len({*names}) == len(names)


def test_no_comparison_may_be_left_out() -> None:
    for suite in SUITES:
        text = (INTEGRATION / suite).read_text()
        assert "skip" not in text
        assert "xfail" not in text
