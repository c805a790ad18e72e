"""The kernels' contracts, which models call: the same for C++ on CPUs and Triton on GPUs.

Each kernel has a twin in plain torch, which runs where there is no kernel.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from engine.kernels.fusion import FewRowProducts
from engine.kernels.recurrent import LayerStates, RecurrentInputs, RecurrentWeights
from engine.kernels.rows import DualRows, QuantizedRows, Rows
from engine.kernels.style import AttentionStyle

CLAMPED = "clamped_swiglu"  # an activation
SQUARED_RELU = "squared_relu"  # another, which has no gate: no fusion knows it


class Linear(Protocol):
    """y = x W^T + b, for x [tokens, inputs] and W [outputs, inputs]."""

    def __call__(self, inputs: Rows) -> Tensor:
        """[tokens, inputs] to [tokens, outputs].

        Only a product with an fp8 weight is given QuantizedRows.
        """


class Kernels(Protocol):
    """The kernels of one kind of device; opened once, and passed to all parts of a model."""

    @property
    def gates(self) -> Collection[str]:
        """The activations that `gated` knows, by their names in configs."""

    @property
    def few_row_products(self) -> FewRowProducts | None:
        """Fused products of few rows; None: products, norms and gates are separate calls."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear | None:
        """A product with `weight` [outputs, inputs]; None: use torch's."""

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight over the last dimension, of [tokens, size] or of heads besides.

        `weight` is of the same dtype, or float32.
        """

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[Tensor, Tensor]:
        """The norm of residual + scale * inputs, and that sum; all [tokens, size]."""

    def gated(
        self, gate_up: Tensor, gate: str, clamp: tuple[float, float] | None = None
    ) -> Tensor:
        """[rows, 2 * size] to [rows, size]: activate(gate) * up, gates first.

        `clamp` has the alpha and the limit of CLAMPED, gpt-oss's own unit.
        """

    def sigmoid_gated(self, rows: Tensor, gates: Tensor) -> Tensor:
        """rows * sigmoid(gates), [tokens, size] each; there may be gaps between tokens."""

    def added(self, rows: Tensor, others: Tensor) -> Tensor:
        """rows + others, [tokens, size] each."""

    def squared_relu(self, rows: Tensor) -> Tensor:
        """max(x, 0)^2 of each number (So et al. 2021), [rows, size] to the same."""


class QuantizedOutputKernels(Protocol):
    """Norms and gates of Kernels whose output rows are quantized, for products in fp8.

    The output equals, to the bit, quantizing the whole rows afterwards.
    """

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> QuantizedRows:
        """Of [tokens, size]; see Kernels, here and below."""

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[QuantizedRows, Tensor]:
        """The sum is not quantized."""

    def gated(
        self, gate_up: Tensor, gate: str, clamp: tuple[float, float] | None = None
    ) -> QuantizedRows:
        """[rows, 2 * size] to [rows, size]."""

    def squared_relu(self, rows: Tensor) -> QuantizedRows:
        """[rows, size] to the same."""


class DualOutputNorms(Protocol):
    """Norms of Kernels with two outputs, whole for a router and quantized for its experts."""

    def norm(self, inputs: Tensor, weight: Tensor, eps: float) -> DualRows:
        """Of [tokens, size]; see QuantizedOutputKernels, here and below."""

    def add_norm(
        self, inputs: Tensor, residual: Tensor, weight: Tensor, eps: float, scale: float
    ) -> tuple[DualRows, Tensor]:
        """The sum is not quantized."""


class QuantizingKernels(Kernels, Protocol):
    """Kernels that can also quantize their output rows to fp8."""

    def quantized(self, group: int | None) -> QuantizedOutputKernels:
        """Kernels with quantized output, a scale for each `group` numbers; None: each row."""

    def dual(self, group: int | None) -> DualOutputNorms:
        """Norms with whole and quantized outputs, with scales likewise."""


class HeadNorm(Protocol):
    """An RMS norm of each head, or of a latent."""

    @property
    def weight(self) -> Tensor:
        """[size]."""

    @property
    def eps(self) -> float:
        """Added to the mean square."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """[.., size] to the same."""


HeadNorms = tuple[HeadNorm, HeadNorm]
"""The norms of queries and of keys, before the rotary embedding."""


class Latents(NamedTuple):
    """Inputs of a latent attention (MLA) layer, before rotary embedding and the KV write.

    A row of `rows` [tokens, 1, width] is a latent, which `norm` norms, and behind it a rotary
    key. `queries` [tokens, heads, width of that key] are the rotary parts of the queries;
    `turned` receives them with the rotary embedding applied.
    """

    rows: Tensor
    norm: HeadNorm
    queries: Tensor
    turned: Tensor


class LayerKv(NamedTuple):
    """One layer of the paged KV memory [block, layer, part, kv_head, token, width].

    The first `value_width` numbers of a stored row are the value; None: all.
    """

    memory: Tensor
    layer: int
    value_width: int | None = None


class Contexts(NamedTuple):
    """Block tables and context lengths in tokens, which count the new queries' tokens too.

    A sequence of length 0 is padding: nothing is read for it.
    """

    tables: Tensor  # [sequences, most] int32
    lengths: Tensor  # [sequences] int32


class Chunks(NamedTuple):
    """Where each sequence's queries begin, and an upper bound of how many a sequence has."""

    firsts: Tensor  # [sequences + 1] int32 rows
    longest: int


class AttentionIo(NamedTuple):
    """Queries [rows, heads, width], and a tensor for the output [rows, heads * value_width]."""

    queries: Tensor
    output: Tensor


class RecurrentIo(NamedTuple):
    """The inputs of a recurrent layer, and a tensor for its output [tokens, values]."""

    inputs: RecurrentInputs
    output: Tensor


class PagedKernels(QuantizingKernels, Protocol):
    """Kernels over paged KV and over states as well; all metadata of a batch is on the device.

    No call waits for the device, and no launch depends on a tensor's contents, so all of them
    can be captured in a CUDA graph.
    """

    def decode_attention(
        self, io: AttentionIo, kv: LayerKv, contexts: Contexts, style: AttentionStyle
    ) -> None:
        """Attention of one query of each sequence."""

    def prefill_attention(
        self,
        io: AttentionIo,
        kv: LayerKv,
        contexts: Contexts,
        chunks: Chunks,
        style: AttentionStyle,
    ) -> None:
        """Causal attention of the last queries of each sequence.

        Rows behind the last chunk are padding; their output is zeros.
        """

    def turn_and_write(
        self,
        parts: tuple[Tensor, Tensor, Tensor],
        rotation: tuple[Tensor, Tensor] | None,
        kv: LayerKv,
        slots: Tensor,
        norms: HeadNorms | None,
    ) -> Tensor:
        """Apply the rotary embedding (RoPE) to queries and keys; write keys and values.

        `parts` are queries, keys and values [tokens, heads, width]; queries and keys are normed
        first, if there are `norms`. `rotation` is a table [positions, 2, width] and positions
        [tokens]; None: no rotary embedding. A slot [tokens] is block * block_size + offset; at
        -1 nothing is written. Returns the queries.
        """

    def turn(
        self, queries: Tensor, rotation: tuple[Tensor, Tensor] | None, norm: HeadNorm | None
    ) -> Tensor:
        """The same of queries alone, which are normed first, if there is a `norm`."""

    def turn_and_write_latents(
        self, latents: Latents, rotation: tuple[Tensor, Tensor], kv: LayerKv, slots: Tensor
    ) -> None:
        """Apply RoPE to queries and keys, norm the latents, and write latents and keys."""

    def write(self, parts: Sequence[Tensor], kv: LayerKv, slots: Tensor) -> None:
        """Write all parts, as many as `kv` has, [tokens, kv_heads, width] each, to `slots`."""

    def recurrent_step(
        self,
        io: RecurrentIo,
        states: LayerStates,
        contexts: Contexts,
        weights: RecurrentWeights,
    ) -> None:
        """One token of each sequence through a recurrent layer, which changes its state.

        The tables of `contexts` are of blocks of states: [sequences, state blocks]. A sequence
        of length 1 begins. Nothing is read or written for padding; its output is zeros.
        """

    def recurrent_chunks(
        self,
        io: RecurrentIo,
        states: LayerStates,
        contexts: Contexts,
        chunks: Chunks,
        weights: RecurrentWeights,
    ) -> None:
        """The last tokens of each sequence, likewise; one that has no others begins."""
