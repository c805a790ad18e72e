"""A linear layer with adapters: the base model's product, and what each row's adapter adds."""

from dataclasses import dataclass

from torch import Tensor

from engine.kernels.contract import Linear
from engine.kernels.lora import AdapterStack
from engine.kernels.products import Products
from engine.kernels.rows import Rows, whole_rows
from engine.lora.active import ActiveAdapters


@dataclass(frozen=True, slots=True, eq=False)
class LoraLinear:
    """A linear layer over `base`, whose results it changes.

    Rows whose adapter does not change this layer get zeros added. If no row of a step has an
    adapter, this is `base` alone.
    """

    base: Linear
    stack: AdapterStack
    products: Products
    active: ActiveAdapters

    def __call__(self, inputs: Rows) -> Tensor:
        """See Linear in engine/kernels/contract.py."""
        outputs = self.base(inputs)
        if (rows := self.active.rows) is None:
            return outputs
        return self.products.add_adapters(outputs, whole_rows(inputs), rows, self.stack)
