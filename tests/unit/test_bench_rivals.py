"""What stands beside our kernels in the bench of a GPU computes the same; loads are whole."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from bench.gpu import loading
from bench.gpu.loading import Stored, shortened
from bench.gpu.measuring import difference
from bench.gpu.row import Row
from bench.gpu.rows import attention, step_products
from bench.gpu.scaled_linears import ScaledLinear, scale_linears
from bench.gpu.shapes import LLAMA, QWEN, SHAPES, TINY, TINY_EXPERTS, Shape
from engine.checkpoints.checkpoint import Checkpoint
from engine.models.choosing import load_model
from engine.models.decoder import Decoder

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are not interpreted beside a GPU"
)
CPU = torch.device("cpu")
ATTENDING = [row for row in attention.rows(TINY) if row.name.endswith("attention")]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("row", ATTENDING, ids=str)
def test_flex_attention_sees_what_sdpa_sees(row: Row) -> None:
    rivals = row.make(CPU).rivals
    flex, sdpa = (rivals[name]() for name in ("flex, dense", "sdpa, dense"))
    assert difference(flex(), sdpa()) < 0.01


def test_rows_of_unlike_lengths_and_chunks_behind_a_prefix_are_among_them() -> None:
    said = [str(row) for row in ATTENDING]
    assert "decode attention: batch 3, context up to 80" in said
    assert "prefill attention: 6 tokens behind 18" in said


@pytest.mark.parametrize("row", [*step_products.rows(SHAPES["tiny-fp8"])], ids=str)
def test_products_of_a_step_are_those_of_torch(row: Row) -> None:
    prepared = row.make(CPU)
    (theirs,) = prepared.rivals.values()
    assert difference(prepared.run(), theirs()()) < 0.01


def test_linear_layers_in_8_bits_are_nearly_those_they_stand_for() -> None:
    model = nn.Sequential(
        nn.Linear(32, 48, bias=False), nn.Sequential(nn.Linear(48, 16, bias=False))
    )
    model.to(torch.bfloat16)
    given = torch.randn(2, 3, 32, dtype=torch.bfloat16)
    with torch.inference_mode():
        whole = model(given)
        scale_linears(model, CPU)
        assert isinstance(model[0], ScaledLinear)
        rounded = model(given)
    assert rounded.shape == whole.shape
    assert 0 < difference(rounded, whole) < 0.1


@pytest.mark.parametrize("shape", [TINY, TINY_EXPERTS], ids=lambda shape: shape.name)
def test_what_is_loaded_is_all_that_a_model_takes(shape: Shape, tmp_path: Path) -> None:
    stored = Stored.write(shape, tmp_path, CPU)
    dummy = Checkpoint(tmp_path, stored.checkpoint.config, dummy_seed=0)
    place = stored._place()
    read = load_model(stored.checkpoint, stored.config, 1, place)
    made = load_model(dummy, stored.config, 1, place)
    assert isinstance(read, Decoder)
    assert isinstance(made, Decoder)
    assert torch.equal(read.embedding, made.embedding)
    assert len(read.layers) == shape.num_hidden_layers


def test_a_checkpoint_is_of_several_files_and_as_large_as_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "FILE_BYTES", 1 << 15)
    stored = Stored.write(TINY, tmp_path, CPU)
    assert len(stored.checkpoint.weight_files) > 2
    assert stored.num_bytes == sum(
        file.stat().st_size for file in tmp_path.glob("*.safetensors")
    )
    for shape, layers in ((LLAMA, 4), (QWEN, 1)):
        assert shortened(shape).num_hidden_layers == layers
    assert shortened(TINY) == TINY


def test_a_load_is_told_beside_reads_and_copies(tmp_path: Path) -> None:
    stored = Stored.write(TINY, tmp_path, CPU)
    for counted in (stored.cold(), stored.warm()):
        assert counted.least_s > 0
        assert counted.told.startswith(f"{stored.num_bytes / 1e9:.3g} GB at ")


def test_files_are_read_to_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By parts: none is left out, and none is read twice."""
    monkeypatch.setattr(loading, "PART_BYTES", 1000)
    file = tmp_path / "file"
    file.write_bytes(os.urandom(2500))
    assert [part[1:] for part in loading._parts(file)] == [(0, 1000), (1000, 1000), (2000, 500)]
    into = memoryview(bytearray(2500))
    for part in loading._parts(file):
        loading._read_part(part, into[part[1] :])
    assert into == file.read_bytes()
