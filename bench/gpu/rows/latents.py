"""Prefill attention of DeepSeek-V3's layers, one of eight shards: over keys and values that are
made of latents for it, and over the latents as they are stored.

    out = softmax(scale * query . [up_k latent, key]) (up_v latent)     for each head

The floor is that of keys and values made once, each query multiplied with those it sees.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812  the name the field knows it by
from torch import Tensor

from bench.gpu.row import Prepared, Row, Run
from bench.gpu.shapes import Shape
from engine.kernels.floor import Floor
from engine.kernels.gpu.attention_floors import prefill_floor
from engine.kernels.gpu.paged_call import Heads
from engine.kernels.gpu.prefill_attention import prefill_attention
from engine.kernels.style import AttentionStyle

LAYERS, LAYER = 4, 1
LEAST = 1024  # tokens of a prompt: for less the sizes below are cut


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heads, and numbers of a latent, its rotated key, a head's key without it, a value."""

    heads: int = 16
    rank: int = 512
    rope: int = 64
    plain: int = 128
    value: int = 128

    @property
    def key(self) -> int:
        """Numbers of a head's whole key."""
        return self.plain + self.rope


def rows(shape: Shape) -> Iterator[Row]:
    """A whole prompt, its end behind the rest, and the fewest tokens that are expanded."""
    if shape.quantization is not None or shape.num_experts:
        return
    sizes = Sizes() if shape.prefill >= LEAST else Sizes(2, 32, 16, 16, 16)
    prompt = shape.prefill
    for count in (prompt, prompt // 4, max(1, prompt // 32)):
        setting = f"{count} tokens behind {prompt - count}"
        work = partial(_prefill, shape, sizes, count)
        yield Row("prefill attention over latents", setting, work)


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    """One sequence, its stored latents, and a head's matrices."""

    sizes: Sizes
    queries: Tensor  # [count, heads, key]
    memory: Tensor  # [block, layer, 1, 1, token, rank + rope]
    table: Tensor  # [1, blocks]
    length: Tensor
    firsts: Tensor
    keys: Tensor  # [heads, plain, rank]
    values: Tensor  # [heads, rank, value]
    style: AttentionStyle

    def expanded(self) -> Tensor:
        """Keys and values made, attended to, and left."""
        made, size = self.made(), self.memory.shape[4]
        blocks = made.view(2, self.sizes.heads, -1, size, self.sizes.key)
        memory = blocks.permute(2, 0, 1, 3, 4).unsqueeze(1)
        table = torch.arange(len(memory), dtype=torch.int32, device=made.device)[None]
        return prefill_attention(
            self.queries, memory, 0, table, self.firsts, self.length, len(self.queries),
            self.style, self.sizes.value,
        )  # fmt: skip

    def made(self) -> Tensor:
        """[2, heads, tokens, key] keys, and values in the leading numbers of rows."""
        heads, rank, plain = self.sizes.heads, self.sizes.rank, self.sizes.plain
        latents = self.memory[:, LAYER, 0, 0].index_select(0, self.table[0]).flatten(0, 1)
        made = latents.new_empty(2, heads, len(latents), self.sizes.key)
        rows = latents[None, :, :rank].expand(heads, -1, -1)
        torch.bmm(rows, self.keys.transpose(1, 2), out=made[0, ..., :plain])
        made[0, ..., plain:] = latents[:, rank:]
        torch.bmm(rows, self.values, out=made[1, ..., : self.sizes.value])
        return made

    def absorbed(self) -> Tensor:
        """Queries multiplied with matrices, and results; latents attended to."""
        plain, rank, count = self.sizes.plain, self.sizes.rank, len(self.queries)
        asked = self.queries.new_empty(count, self.sizes.heads, rank + self.sizes.rope)
        into = asked[..., :rank].transpose(0, 1)
        torch.bmm(self.queries[..., :plain].transpose(0, 1), self.keys, out=into)
        asked[..., rank:] = self.queries[..., plain:]
        read = prefill_attention(
            asked, self.memory, LAYER, self.table, self.firsts, self.length, count, self.style,
            rank,
        )  # fmt: skip
        weighted = read.view(count, self.sizes.heads, rank).transpose(0, 1)
        return torch.bmm(weighted, self.values).transpose(0, 1).flatten(1)

    def dense(self, made: Tensor) -> Tensor:
        """Torch's attention over what was made, in order."""
        length, count = int(self.length), len(self.queries)
        keys, values = made[:, None, :, :length]
        mask = torch.ones(count, length, dtype=torch.bool, device=made.device)
        found = F.scaled_dot_product_attention(
            self.queries.transpose(0, 1)[None], keys, values[..., : self.sizes.value],
            mask.tril(length - count), scale=self.style.scale,
        )  # fmt: skip
        return found[0].transpose(0, 1).flatten(1)


def _prefill(shape: Shape, sizes: Sizes, count: int, device: torch.device) -> Prepared:
    case = _case(shape, sizes, count, device)
    rivals: dict[str, Callable[[], Run]] = {
        "latents as stored": lambda: case.absorbed,
        "sdpa, made before": lambda: partial(case.dense, case.made()),
    }
    floor = _floor(shape, sizes, count)
    return Prepared(case.expanded, floor, lambda: case.dense(case.made()), rivals)


def _case(shape: Shape, sizes: Sizes, count: int, device: torch.device) -> _Case:
    def random(*numbers: int) -> Tensor:
        return torch.randn(numbers, dtype=shape.dtype, device=device)

    length, block = shape.prefill, shape.block_size
    blocks, heads = -(-length // block), sizes.heads
    return _Case(
        sizes,
        random(count, heads, sizes.key),
        random(blocks, LAYERS, 1, 1, block, sizes.rank + sizes.rope),
        torch.randperm(blocks, device=device).int()[None],
        torch.tensor([length], dtype=torch.int32, device=device),
        torch.tensor([0, count], dtype=torch.int32, device=device),
        random(heads, sizes.plain, sizes.rank) / sizes.rank**0.5,
        random(heads, sizes.rank, sizes.value) / sizes.rank**0.5,
        AttentionStyle(sizes.key**-0.5),
    )


def _floor(shape: Shape, sizes: Sizes, count: int) -> Floor:
    """Latents and matrices are read, but not the keys and values, which are made of them."""
    itemsize, length = shape.dtype.itemsize, shape.prefill
    heads = Heads(sizes.heads, sizes.heads, sizes.key, sizes.value, 2, itemsize)
    attended = prefill_floor(heads, [(count, length)]).operations
    matrices = sizes.heads * sizes.rank * (sizes.plain + sizes.value)
    asked = count * sizes.heads * (sizes.key + sizes.value)
    read = matrices + length * (sizes.rank + sizes.rope)
    return Floor((asked + read) * itemsize, attended + 2 * length * matrices)
