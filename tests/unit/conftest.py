"""What holds for every unit test."""

import pytest


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is broken over lines, whichever test is the first to print one."""
    monkeypatch.setenv("COLUMNS", "400")
