"""What holds for every unit test."""

from collections.abc import Sequence

import pytest
from pytest_asyncio import is_async_test


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is broken over lines, whichever test is the first to print one."""
    monkeypatch.setenv("COLUMNS", "400")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Tests of gRPC share a loop: what a call leaves behind must never find its loop closed."""
    one_loop = pytest.mark.asyncio(loop_scope="session")
    for item in items:
        if item.path.name.startswith("test_grpc_") and is_async_test(item):
            item.add_marker(one_loop, append=False)
