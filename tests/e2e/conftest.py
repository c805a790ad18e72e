"""Checkpoints that are made once for all tests."""

from pathlib import Path

import pytest

from tests.fakes.checkpoints import make_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of some thousand weights."""
    return make_checkpoint(tmp_path_factory.mktemp("checkpoint") / "llama")
