"""What several tests are given."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.kernels.cpu.native import CpuKernels
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.compiled import compiled

PORTABLE = ("-O2", "-std=c++17", "-fPIC", "-shared", "-fopenmp")


@pytest.fixture(scope="session", params=[None, PORTABLE], ids=["this machine", "any machine"])
def kernels(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CpuKernels:
    """As they are installed, and compiled for no machine in particular."""
    return compiled(tmp_path_factory, request.param)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of some thousand weights; not to be changed."""
    return make_checkpoint(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def tokenizer(llama: Path) -> Tokenizer:
    """Its own."""
    return Tokenizer.from_file(str(llama / "tokenizer.json"))
