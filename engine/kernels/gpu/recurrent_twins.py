"""Layers that keep a state, by tables of blocks, in plain torch that waits for no device."""

from typing import NamedTuple

import torch
from torch import Tensor

from engine.kernels.contract import Chunks, Contexts, RecurrentIo
from engine.kernels.recurrent import (
    Heads,
    LayerStates,
    RecurrentInputs,
    RecurrentWeights,
    convolve,
    entering,
)

TOKENS_AT_ONCE = 64


def step_twin(
    io: RecurrentIo, states: LayerStates, contexts: Contexts, weights: RecurrentWeights
) -> None:
    """See PagedKernels in engine/kernels/contract.py, here and below.

    Padding rows repeat what the first real row writes; if all are padding, what is there.
    """
    (mixed, rates), (tables, lengths) = io.inputs, contexts
    used = lengths > 0
    rows = torch.arange(len(lengths), device=lengths.device)
    rows = torch.where(used, rows, used.int().argmax())
    blocks, goes_on = _blocks(states, tables)[rows], lengths[rows] > 1
    kept, known = states.inputs[blocks], states.memory[blocks]
    before = kept.where(goes_on[:, None, None], 0)
    memory = known.where(goes_on[:, None, None, None], 0)
    new = entering(weights, RecurrentInputs(mixed[rows], rates[rows]))[:, None]
    heads = weights.heads(convolve(weights, before, new)[:, 0], rates[rows])
    read, memory = weights.step(heads, memory)
    last = torch.cat((before[:, 1:], new), 1)
    states.memory.index_put_((blocks,), torch.where(used.any(), memory, known))
    states.inputs.index_put_((blocks,), torch.where(used.any(), last, kept))
    io.output.copy_(weights.gate_and_norm(read, mixed).masked_fill(~used[:, None], 0))


def chunks_twin(
    io: RecurrentIo,
    states: LayerStates,
    contexts: Contexts,
    chunks: Chunks,
    weights: RecurrentWeights,
) -> None:
    """One sequence after the other, as if each had as many tokens as the longest may have."""
    (mixed, rates), shape, rows = io.inputs, weights.shape, len(io.output)
    sizes = rows + 1, shape.value_heads, shape.value_width  # the last is of all that are none
    read = mixed.new_zeros(sizes, dtype=torch.float32)
    firsts, blocks = chunks.firsts.long(), _blocks(states, contexts.tables)
    for line, length in enumerate(contexts.lengths):
        each = firsts[line] + torch.arange(max(1, chunks.longest), device=mixed.device)
        live, count = each < firsts[line + 1], firsts[line + 1] - firsts[line]
        at = each.clamp(max=rows - 1)
        some = RecurrentInputs(mixed[at].where(live[:, None], 0), rates[at])
        state = _State(states, blocks[line : line + 1], length > count)
        read[torch.where(live, each, rows)] = state.through(some, live, count, weights)
    output = weights.gate_and_norm(read[:rows], mixed)
    behind = torch.arange(rows, device=mixed.device) >= firsts[-1]
    io.output.copy_(output.masked_fill(behind[:, None], 0))


class _State(NamedTuple):
    """One sequence's state in a layer; it is zeros unless the sequence goes on."""

    states: LayerStates
    block: Tensor  # [1] int64
    goes_on: Tensor  # [] bool

    def through(
        self, inputs: RecurrentInputs, live: Tensor, count: Tensor, weights: RecurrentWeights
    ) -> Tensor:
        """[tokens, value_heads, value_width] of tokens, the first `count` being `live`."""
        kept, known = self.states.inputs[self.block], self.states.memory[self.block]
        before, memory = kept[0].where(self.goes_on, 0), known[0].where(self.goes_on, 0)
        new = entering(weights, inputs)
        heads = weights.heads(convolve(weights, before, new), inputs.rates)
        dead = ~live[:, None]
        heads = Heads(
            *(one.masked_fill(dead[..., None], 0) for one in heads[:3]),
            *(one.masked_fill(dead, 0) for one in heads[3:]),
        )
        parts = list[Tensor]()
        for first in range(0, len(live), TOKENS_AT_ONCE):
            some = Heads(*(one[first : first + TOKENS_AT_ONCE] for one in heads))
            read, memory = weights.chunk(some, memory)
            parts.append(read)
        last = count + torch.arange(len(before), device=count.device)
        last = torch.cat((before, new))[last]
        used = count > 0
        self.states.memory.index_put_((self.block,), memory[None].where(used, known))
        self.states.inputs.index_put_((self.block,), last[None].where(used, kept))
        return torch.cat(parts)


def _blocks(states: LayerStates, tables: Tensor) -> Tensor:
    """[sequences] int64; what a table says of padding is arbitrary."""
    return tables[:, states.place].long().clamp(0, len(states.memory) - 1)
