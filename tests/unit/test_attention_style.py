"""Paged attention does what its style says, as the formula says it."""

import pytest
import torch
from torch import Tensor

from engine.attention.host_batch import AttentionBatch
from engine.attention.kv_memory import KvMemory, KvShape
from engine.attention.paged import Span
from engine.kernels.style import AttentionStyle

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 4, 2, 8, 5
SINKS = torch.tensor([2.0, -1.0, 0.5, 5.0])
STYLES = {
    "plain": AttentionStyle(HEAD_DIM**-0.5),
    "scale": AttentionStyle(0.9),
    "window": AttentionStyle(0.4, window=7),
    "softcap": AttentionStyle(0.8, softcap=1.5),
    "sinks": AttentionStyle(0.4, sinks=SINKS),
    "all of it": AttentionStyle(0.8, window=3, softcap=2.0, sinks=SINKS),
}


def memory(blocks: int) -> KvMemory:
    shape = KvShape(2, KV_HEADS, HEAD_DIM)
    return KvMemory(shape, blocks, BLOCK, torch.float32, torch.device("cpu"))


def expected(style: AttentionStyle, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Query by query and head by head; queries are the last of the sequence."""
    outputs = torch.empty_like(queries)
    before = len(keys) - len(queries)
    for row, head in torch.cartesian_prod(torch.arange(len(queries)), torch.arange(HEADS)):
        last = before + int(row) + 1
        first = 0 if style.window is None else max(0, last - style.window)
        shared = head // (HEADS // KV_HEADS)
        scores = style.scale * keys[first:last, shared] @ queries[row, head]
        if style.softcap is not None:
            scores = style.softcap * torch.tanh(scores / style.softcap)
        total = scores.exp().sum()
        if style.sinks is not None:
            total += style.sinks[head].exp()
        outputs[row, head] = scores.exp() / total @ values[first:last, shared]
    return outputs.flatten(1)


@pytest.mark.parametrize("name", STYLES)
def test_attention_follows_its_style(name: str) -> None:
    """Two sequences that want one token each, and a chunk that is cut into slices."""
    generator = torch.Generator().manual_seed(1)
    lengths, wanted = (11, 14, 90), (1, 1, 80)
    kv = memory(40)
    spans, whole, first = list[Span](), list[tuple[Tensor, Tensor]](), 0
    for length, want in zip(lengths, wanted, strict=True):
        count = -(-length // BLOCK)
        blocks = range(first, first + count)
        first += count
        keys, values = torch.randn(2, length, KV_HEADS, HEAD_DIM, generator=generator)
        AttentionBatch(kv, [], [Span(0, length, blocks)]).write(1, keys, values)
        spans.append(Span(length - want, want, blocks))
        whole.append((keys, values))
    queries = torch.randn(sum(wanted), HEADS, HEAD_DIM, generator=generator)
    got = AttentionBatch(kv, spans[:2], spans[2:]).attend(1, STYLES[name], queries)
    parts = zip(queries.split(wanted), whole, strict=True)
    want_all = torch.cat([expected(STYLES[name], some, *kv_) for some, kv_ in parts])
    torch.testing.assert_close(got, want_all, atol=1e-5, rtol=1e-4)
