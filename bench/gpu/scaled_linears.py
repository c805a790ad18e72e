"""A model of transformers whose linear layers use torch's own fp8 product.

Rows are quantized by one launch of ours: torch's operations would take seven.
"""

import torch
from torch import Tensor, nn

from bench.gpu.rows.step_products import scaled
from engine.kernels.gpu.rounding import quantize_rows
from engine.kernels.rows import to_fp8


class ScaledLinear(nn.Module):
    """[.., inputs] to [.., outputs], a scale for each row and each output; no bias."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        assert linear.bias is None, "shapes of the bench have none"
        values, scales = to_fp8(linear.weight.detach(), linear.in_features)
        self.values: Tensor = values
        self.scales: Tensor = scales.T.contiguous()

    def forward(self, given: Tensor) -> Tensor:
        """As the layer that it replaces."""
        rows = quantize_rows(given.reshape(-1, given.shape[-1]), None)
        return scaled(rows, self.values, self.scales).view(*given.shape[:-1], -1)


@torch.inference_mode()
def scale_linears(model: nn.Module, device: torch.device) -> None:
    """Replace all linear layers of a model, including the head, in place.

    Each is run once, so that its kernels are compiled before a graph is captured with them.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                made = ScaledLinear(child)
                made(torch.ones(1, child.in_features, dtype=child.weight.dtype, device=device))
                setattr(module, name, made)
