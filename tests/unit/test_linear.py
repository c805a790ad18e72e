"""Packed weights multiply as plain ones do."""

import pytest
import torch

from engine.checkpoints.linear import PackedLinear, PlainLinear, linear

needs_bfloat16 = pytest.mark.skipif(
    not isinstance(linear(torch.ones(2, 2, dtype=torch.bfloat16)), PackedLinear),
    reason="this CPU has no bfloat16 instructions",
)


@needs_bfloat16
@pytest.mark.parametrize("tokens", [1, 7, 64])
@pytest.mark.parametrize(("outputs", "inputs"), [(1376, 256), (33, 17), (1, 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_weights_multiply_as_plain_ones_do(
    tokens: int, outputs: int, inputs: int, bias: bool
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs).bfloat16()
    offsets = torch.randn(outputs).bfloat16() if bias else None
    asked = torch.randn(tokens, inputs).bfloat16()
    exact = PlainLinear(weight.double(), None if offsets is None else offsets.double())
    answer = linear(weight, offsets)(asked)
    assert answer.dtype is torch.bfloat16
    torch.testing.assert_close(answer.double(), exact(asked.double()), rtol=0.01, atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_dtypes_stay_as_they_are(dtype: torch.dtype) -> None:
    weight = torch.ones(3, 2, dtype=dtype)
    made = linear(weight)
    assert isinstance(made, PlainLinear)
    assert made.weight is weight


def test_a_machine_without_onednn_multiplies_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    weight = torch.full((3, 2), 2.0, dtype=torch.bfloat16)
    assert linear(weight)(torch.ones(1, 2, dtype=torch.bfloat16)).tolist() == [[4.0] * 3]
