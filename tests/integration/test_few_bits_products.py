"""Products with weights of 4 and of 8 bits by the compiled CPU kernel, against the formula."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from engine.kernels.cpu import build
from engine.kernels.cpu.few_bits import stays_packed
from engine.kernels.cpu.native import CpuKernels
from engine.kernels.weights import BLOCK, Fp8Weight, Int4Weight, int4_weight
from tests.fakes.compiled import compiled

pytestmark = pytest.mark.skipif(
    not CpuKernels(build.library()).multiplies_few_bits,
    reason="this CPU has no pairs of bfloat16",
)
WITHOUT_TILES = (*build.FLAGS, "-O1", "-mno-amx-bf16")
PLACES_WITHOUT_INPUT = 5
ROUNDED = {torch.float32: 2**-22, torch.bfloat16: 2**-8, torch.float16: 2**-11}
SHAPES = [(64, 128, 128), (70, 96, 32), (33, 200, 64), (130, 1920, 128), (1, 32, 32)]
EIGHT_BITS = [(64, 128), (70, 96), (33, 200), (130, 1920), (1, 32), (256, 1)]
ROWS = [1, 2, 3, 7, 17, 40]
NOT_A_NUMBER = 0x7F


@pytest.fixture(
    scope="module", params=[None, WITHOUT_TILES], ids=["this machine", "without tiles"]
)
def ours(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> CpuKernels:
    """As they are installed, and as for a machine that has vector registers alone."""
    return compiled(tmp_path_factory, request.param)


def every_number() -> Tensor:
    """Of 8 bits, that is one."""
    every = torch.arange(256, dtype=torch.uint8)
    return every[every & NOT_A_NUMBER != NOT_A_NUMBER]


def drawn_eight(outputs: int, inputs: int, *, blocked: bool) -> Fp8Weight:
    """Any numbers, with a scale for each output, or for each BLOCK inputs of one."""
    numbers = every_number()
    values = numbers[torch.randint(0, len(numbers), (1, outputs, inputs))]
    scales = torch.rand(1, -(-inputs // BLOCK) if blocked else 1, outputs) * 0.01
    return Fp8Weight(values.view(torch.float8_e4m3fn), scales)


def drawn(outputs: int, inputs: int, group: int, *, zeros: bool) -> Int4Weight:
    """Any numbers: all 16, and zero points 0 .. 16, as in GPTQ's checkpoints."""
    groups = -(-inputs // group)
    packed = torch.randint(0, 256, (1, outputs, groups, group // 2), dtype=torch.uint8)
    points = torch.randint(0, 17, (1, groups, outputs), dtype=torch.uint8)
    scales = torch.rand(1, groups, outputs) * 0.1
    return Int4Weight(packed, scales, points if zeros else None, inputs)


def shuffled(weight: Int4Weight) -> Int4Weight:
    """With inputs in any order, and places that have none."""
    room = weight.packed.shape[2] * weight.group
    inputs = room - PLACES_WITHOUT_INPUT
    order = torch.full((room,), -1).int()
    order[torch.randperm(room)[:inputs]] = torch.randperm(inputs).int()
    return replace(weight, inputs=inputs, order=order[None])


def assert_is_product(
    ours: CpuKernels, weight: Int4Weight | Fp8Weight, bias: Tensor | None, asked: Tensor
) -> None:
    answer = ours.few_bits(weight, bias, asked.dtype)(asked)
    exact, size = (
        asked.double() @ weight.whole(0, torch.float64).T,
        asked.double().abs() @ weight.whole(0, torch.float64).abs().T,
    )
    exact += 0 if bias is None else bias.double()
    allowed = 2**-18 * size + ROUNDED[asked.dtype] * exact.abs() + 1e-6
    assert answer.dtype is asked.dtype
    assert ((answer.double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_a_product_is_what_the_numbers_say(
    ours: CpuKernels, dtype: torch.dtype, shape: tuple[int, int, int], rows: int
) -> None:
    for zeros, ordered, offset in product([False, True], repeat=3):
        weight = drawn(*shape, zeros=zeros)
        weight = shuffled(weight) if ordered else weight
        bias = torch.randn(shape[0]).to(dtype) if offset else None
        assert_is_product(ours, weight, bias, torch.randn(rows, weight.inputs).to(dtype))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_a_product_of_eight_bits_is_what_the_numbers_say(
    ours: CpuKernels, dtype: torch.dtype, shape: tuple[int, int], rows: int
) -> None:
    for blocked, offset in product([False, True], repeat=2):
        weight = drawn_eight(*shape, blocked=blocked)
        bias = torch.randn(shape[0]).to(dtype) if offset else None
        assert_is_product(ours, weight, bias, torch.randn(rows, shape[1]).to(dtype))


@pytest.mark.parametrize("rows", [1, 2])
def test_every_number_of_eight_bits_is_exact(ours: CpuKernels, rows: int) -> None:
    """Each is the one input of an output, in every place that a word has for it."""
    numbers = every_number().view(torch.float8_e4m3fn)
    for turned in range(0, 64, 16):
        values = numbers.view(torch.uint8).roll(turned).view(numbers.dtype)[None, :, None]
        weight = Fp8Weight(values, torch.ones(1, 1, len(numbers)))
        answer = ours.few_bits(weight, None, torch.float32)(torch.ones(rows, 1))
        assert torch.equal(answer, values[0].float().T.expand(rows, -1))


def test_eight_bits_that_are_no_number_do_not_stay_packed() -> None:
    weight = drawn_eight(64, 128, blocked=False)
    assert stays_packed(weight)
    for sign in (0, 0x80):
        values = weight.values.view(torch.uint8).clone()
        values[0, 5, 7] = sign | NOT_A_NUMBER
        assert not stays_packed(replace(weight, values=values.view(torch.float8_e4m3fn)))


@pytest.mark.parametrize("shape", [(512, 1024), (64, 11008)], ids=str)
@pytest.mark.parametrize("dtype", ROUNDED, ids=str)
def test_a_product_of_more_rows_than_are_multiplied_at_once(
    ours: CpuKernels, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    """With a weight that is large enough for several threads, and of rows that are long."""
    asked = torch.randn(300, shape[1]).to(dtype)
    assert_is_product(ours, drawn(*shape, 128, zeros=True), None, asked)
    assert_is_product(ours, drawn_eight(*shape, blocked=True), None, asked)


@pytest.mark.parametrize("rows", [1, 20])
def test_rows_are_not_rounded(ours: CpuKernels, rows: int) -> None:
    """What is lost of them in bfloat16 would show: each row is 1 and something small."""
    weight = int4_weight(torch.randn(64, 256).sign().unsqueeze(0))
    asked = torch.full((rows, 256), 1 + 2**-10, dtype=torch.float16)
    assert_is_product(ours, weight, None, asked)
    assert_is_product(ours, weight, None, torch.full((rows, 256), 1 + 2**-20))


def test_rows_that_are_no_numbers_stay_alone(ours: CpuKernels) -> None:
    weight = drawn(64, 128, 128, zeros=True)
    made = ours.few_bits(weight, None, torch.bfloat16)
    asked = torch.randn(17, 128).bfloat16()
    expected = made(asked)
    ill = asked.clone()
    ill[3] = float("nan")
    answer = made(ill)
    assert answer[3].isnan().all()
    others = [row for row in range(17) if row != 3]
    assert torch.equal(answer[others], expected[others])
    assert not made(asked[4:9]).isnan().any()  # fewer rows, in memory that had the ill one


def test_its_weights_go_to_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = list[list[tuple[int, int]]]()

    def gather(ranges: Iterable[tuple[int, int]]) -> int:
        gathered.append(list(ranges))
        return 0

    monkeypatch.setattr("engine.kernels.cpu.native.gather", gather)
    own = CpuKernels(build.library())
    made = own.few_bits(drawn(64, 128, 128, zeros=True), None, torch.bfloat16)
    own.move_to_large_pages()
    assert gathered == [[(made.packed.data_ptr(), made.packed.nbytes)]]
    assert made.packed.nbytes == 64 * 128 // 2
