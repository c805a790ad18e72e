"""The compiled kernels say what plain torch says; without a compiler, plain torch says it."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape, LayerKind
from engine.attention.paged import Span
from engine.checkpoints.linear import PackedLinear, PlainLinear, linear
from engine.errors import KernelsUnavailable
from engine.kernels.cpu import build
from engine.kernels.cpu.native import CpuKernels, open_kernels
from engine.kernels.style import AttentionStyle
from tests.fakes.checkpoints import make_checkpoint
from tests.fakes.cpu import packs_as_we_read
from tests.fakes.driver import load, prompt, requests, run

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float16: 3e-3}
SINGLES, CHUNKS = (1, 7, 100, 1025, 2300), ((3, 3), (40, 5), (600, 70), (1100, 8))
SHAPES = {
    "shared": (KvShape(2, 2, 64), 14, 16),
    "alone": (KvShape(2, 3, 64), 3, 7),
    "odd": (KvShape(2, 1, 24), 5, 5),
    "wide": (KvShape(1, 2, 128), 8, 16),
    "many": (KvShape(1, 1, 32), 71, 1),
    "single": (KvShape(2, 3, 64), 3, 16),
    "twins": (KvShape(1, 3, 32), 6, 32),
    "triplets": (KvShape(1, 2, 96), 6, 16),
    "eight": (KvShape(1, 1, 64), 8, 48),
    "expanded": (KvShape(1, 3, 48, value_width=32), 3, 16),
    "latent": (KvShape(2, 1, 96, parts=1, value_width=80), 6, 16),
}
STYLES = {
    "plain": AttentionStyle(0.125),
    "window": AttentionStyle(0.125, window=37),
    "endless": AttentionStyle(0.125, window=1 << 32),
    "softcap": AttentionStyle(0.3, softcap=2.0),
    "sinks": AttentionStyle(0.125, window=1500, sinks=torch.linspace(-3, 6, 14)),
}

needs_packing = pytest.mark.skipif(
    not packs_as_we_read(), reason="oneDNN multiplies a few rows of bfloat16 here"
)


def batch(memory: KvMemory) -> AttentionBatch:
    """Some of everything: single queries, drafts, chunks; blocks in no order."""
    order = torch.randperm(memory.num_blocks, generator=torch.Generator().manual_seed(0))
    blocks, size = iter(order.tolist()), memory.block_size

    def span(end: int, length: int) -> Span:
        return Span(end - length, length, list(itertools.islice(blocks, -(-end // size))))

    return AttentionBatch(
        memory, [span(end, 1) for end in SINGLES], [span(end, some) for end, some in CHUNKS]
    )


def attend(memory: KvMemory, heads: int, style: AttentionStyle) -> Tensor:
    tokens = len(SINGLES) + sum(some for _, some in CHUNKS)
    generator = torch.Generator().manual_seed(2)
    queries = torch.randn(tokens, heads, memory.shape.width, generator=generator)
    return batch(memory).attend(memory.shape.layers - 1, style, queries.to(memory.block_rows))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_its_twin(shape: str, dtype: torch.dtype, kernels: CpuKernels) -> None:
    kept, heads, size = SHAPES[shape]
    blocks = sum(-(-end // size) for end in (*SINGLES, *(end for end, _ in CHUNKS)))
    memories = [
        KvMemory(kept, blocks, size, dtype, torch.device("cpu"), one) for one in (kernels, None)
    ]
    for memory in memories:
        memory.block_rows.normal_(generator=torch.Generator().manual_seed(1))
    for name, style in STYLES.items():
        if style.sinks is not None and heads != len(style.sinks):
            continue
        ours, twin = (attend(memory, heads, style) for memory in memories)
        error = (ours.double() - twin.double()).abs().max() / twin.abs().max()
        assert error < TOLERANCE[dtype], name


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("other", [LayerKind(2, 1, 64), LayerKind(1, 3, 32)])
def test_layers_of_two_kinds_are_as_if_alone(
    other: LayerKind, compiled: bool, kernels: CpuKernels
) -> None:
    """What is written to either, and read of it, is what a memory of one kind would have."""
    first, ours = KvShape(2, 2, 32), kernels if compiled else None
    apart = first, KvShape(other.layers, other.heads, other.width)
    both, *alone = (
        KvMemory(shape, 5, 4, torch.float32, torch.device("cpu"), ours)
        for shape in (replace(first, global_layers=other), *apart)
    )
    spans = [Span(5, 1, [4, 1])], [Span(0, 6, [3, 0])]
    together = AttentionBatch(both, *spans)
    generator = torch.Generator().manual_seed(3)
    for begin, memory in zip((0, first.layers), alone, strict=True):
        batch, shape = AttentionBatch(memory, *spans), memory.shape
        for layer in range(shape.layers):
            size = 7, shape.heads, shape.width
            keys, values, queries = torch.randn(3, *size, generator=generator)
            for into, at in ((batch, layer), (together, begin + layer)):
                into.turn_and_write(at, (queries, keys, values), None)
            wanted = batch.attend(layer, AttentionStyle(0.5), queries)
            read = together.attend(begin + layer, AttentionStyle(0.5), queries)
            assert torch.equal(read, wanted)
    for planes, memory in zip(both.planes, alone, strict=True):
        assert torch.equal(planes.blocks, memory.blocks)
        assert planes.blocks.any()
    both.clear_behind(4, 2)
    assert not any(planes.blocks[4, ..., 2:, :].any() for planes in both.planes)
    assert all(planes.blocks[1, ..., 1, :].all() for planes in both.planes)


def test_a_sequence_attends_alike_whoever_is_there(kernels: CpuKernels) -> None:
    memory = KvMemory(KvShape(1, 2, 64), 400, 16, torch.bfloat16, torch.device("cpu"), kernels)
    memory.block_rows.normal_()
    style, queries = AttentionStyle(0.125), torch.randn(3, 8, 64).bfloat16()
    spans = [
        Span(at, 1, range(first, first + 130))
        for at, first in ((2050, 0), (9, 130), (999, 200))
    ]
    together = AttentionBatch(memory, spans, []).attend(0, style, queries)
    for span, query, row in zip(spans, queries, together, strict=True):
        alone = AttentionBatch(memory, [span], []).attend(0, style, query[None])
        assert torch.equal(alone[0], row)


def test_what_lies_behind_a_sequence_does_not_matter(kernels: CpuKernels) -> None:
    """Not even if it is no number."""
    memory = KvMemory(KvShape(1, 1, 32), 4, 16, torch.float32, torch.device("cpu"), kernels)
    memory.blocks[0, ..., 5:, :] = torch.nan
    memory.blocks[1:] = torch.nan
    batch = AttentionBatch(memory, [Span(4, 1, [0, 1, 2])], [Span(0, 5, [0, 3])])
    assert batch.attend(0, AttentionStyle(1.0), torch.ones(6, 2, 32)).isfinite().all()


@pytest.mark.parametrize("octaves", [1.0, 7.0, 9.0, 60.0])
def test_scores_may_climb_from_tile_to_tile(octaves: float, kernels: CpuKernels) -> None:
    """By so much in each 32 keys: less than weights are rescaled for, or more."""
    kept, end = KvShape(1, 2, 64), 1 + 32 * 40
    memory = KvMemory(kept, -(-end // 16), 16, torch.bfloat16, torch.device("cpu"), kernels)
    memory.block_rows.normal_(generator=torch.Generator().manual_seed(1))
    span, climb = Span(end - 1, 1, range(memory.num_blocks)), torch.arange(memory.num_blocks)
    memory.blocks[:, 0, 0, :, :, 0] = climb.view(-1, 1, 1) * octaves / 2
    queries = torch.randn(1, 14, 64, generator=torch.Generator().manual_seed(2)).bfloat16()
    queries[..., 0] = torch.linspace(0.5, 1, 14)
    style = AttentionStyle(0.6931472)  # e^(it * x) = 2^x
    ours = AttentionBatch(memory, [span], []).attend(0, style, queries).view(14, 64)
    keys, values = memory.blocks[:, 0].double().permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :end]
    scores = queries[0].double().view(2, 7, 64) @ keys.mT * style.scale
    exact = (scores.softmax(-1) @ values).view(14, 64)
    assert (ours - exact).abs().max() / exact.abs().max() < 0.02


def test_a_window_may_be_wider_than_any_context(kernels: CpuKernels) -> None:
    memory = KvMemory(KvShape(1, 1, 32), 2, 16, torch.float32, torch.device("cpu"), kernels)
    memory.block_rows.normal_()
    batch, queries = AttentionBatch(memory, [Span(20, 1, [0, 1])], []), torch.randn(1, 2, 32)
    unlimited = batch.attend(0, AttentionStyle(1.0), queries)
    assert torch.equal(batch.attend(0, AttentionStyle(1.0, window=1 << 33), queries), unlimited)


@needs_packing
@pytest.mark.parametrize("rows", [1, 6, 7, 9, 13, 32])
@pytest.mark.parametrize(("outputs", "inputs"), [(1376, 256), (33, 18), (1, 2), (130, 4864)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_few_rows_are_multiplied_as_many_are(
    rows: int, outputs: int, inputs: int, bias: bool
) -> None:
    weight = torch.randn(outputs, inputs).bfloat16()
    offsets = torch.randn(outputs).bfloat16() if bias else None
    made = linear(weight, offsets, CpuKernels(build.library()))
    assert isinstance(made, PackedLinear)
    assert made.few is not None
    asked = torch.randn(rows, inputs).bfloat16()
    exact = PlainLinear(weight.double(), None if offsets is None else offsets.double())
    answer, expected = made(asked).double(), exact(asked.double())
    assert (answer - expected).abs().max() < 0.01 * expected.abs().max()


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN packs no bfloat16 here"
)
def test_a_layout_that_we_cannot_read_is_left_to_onednn() -> None:
    weight = torch.randn(128, 64).bfloat16()
    packed = torch.ops.mkldnn._reorder_linear_weight(weight)
    kernels = CpuKernels(build.library())
    assert kernels.few_rows(packed, weight.roll(1, 0), None) is None
    assert kernels.few_rows(packed, weight[:, :-1], None) is None


def test_an_engine_answers_alike_with_and_without(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "qwen2")
    prompts = [prompt(length) for length in (1, 17, 60, 130)]
    native, plain = (
        load(tmp_path, cpu_kernels=one, max_num_batched_tokens=48)
        for one in ("native", "torch")
    )
    assert (native.memory.kernels is None, plain.memory.kernels is None) == (False, True)
    assert run(native, requests(prompts)) == run(plain, requests(prompts))


def test_without_a_compiler_plain_torch_is_used_unless_kernels_are_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nonexistent")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert open_kernels("auto") is None
    with pytest.raises(KernelsUnavailable, match="/nonexistent"):
        open_kernels("native")
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize(
    ("told", "flag"), [("48K\n", ["-DPD_FIRST_CACHE=48"]), ("1M\n", []), (None, [])]
)
def test_the_compiler_is_told_how_large_the_first_cache_is(
    told: str | None, flag: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Linux says so; and another size is another library."""
    compiler, asked, size = (tmp_path / name for name in ("compiler", "asked", "size"))
    compiler.write_text(
        f'#!/bin/sh\necho "$@" > {asked}\nfor made; do :; done\ntouch "$made"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "FIRST_CACHE", size)
    if told is not None:
        size.write_text(told)
    made = build.library()
    assert [word for word in asked.read_text().split() if "FIRST_CACHE" in word] == flag
    size.write_text("96K\n")
    assert build.library() != made


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(KernelsUnavailable, match="no-such-option"):
        build.compile_into(tmp_path / "kernels.so", "g++", ("--no-such-option",))
    assert not list(tmp_path.iterdir())


def test_a_library_that_cannot_be_opened_is_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spoiled, say, or for another system's libraries."""
    made = tmp_path / "cache" / build.library().name
    made.parent.mkdir()
    made.write_bytes(b"nothing that runs")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert open_kernels("auto") is None
    with pytest.raises(KernelsUnavailable, match=made.name):
        open_kernels("native")


def test_a_user_without_a_home_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(_uid: int) -> None:
        raise KeyError

    monkeypatch.setattr("sys.prefix", str(tmp_path / "no folder"))
    (tmp_path / "no folder").touch()
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    with pytest.raises(KernelsUnavailable, match="no folder to write to"):
        build.library()
