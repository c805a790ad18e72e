"""From logits to tokens: our way without a sort, compared with the usual way with one."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from bench.gpu.row import Prepared, Row
from bench.gpu.shapes import Shape
from engine.kernels.gpu.sampling.adjusting import (
    adjust,
    adjust_floor,
    adjust_twin,
    apply_bitmasks,
    apply_bitmasks_floor,
)
from engine.kernels.gpu.sampling.choosing import choose, choose_floor
from engine.kernels.gpu.sampling.token_logprobs import gather_logprobs, gather_logprobs_floor
from engine.kernels.searching import search_for
from engine.kernels.token_logprobs import logprobs_size, logprobs_views

SETTINGS = {  # temperature, top-k, top-p, min-p
    "the largest": (0.0, 0, 1.0, 0.0),
    "temperature": (1.0, 0, 1.0, 0.0),
    "top-k 50, top-p 0.9": (0.7, 50, 0.9, 0.0),
    "min-p 0.05": (1.0, 0, 1.0, 0.05),
    "a flat row, top-p 0.95": (1.5, 0, 0.95, 0.0),
}
LISTED = 500  # tokens of an answer
WIDTH = 3.0  # of logits, about as wide as a model's


def rows(shape: Shape) -> Iterator[Row]:
    """Rows of every setting, for each batch."""
    if shape.quantization is not None:
        return
    for count in shape.batches:
        for name, setting in SETTINGS.items():
            make = partial(_choose, count, shape.vocab_size, setting)
            yield Row("sampling", f"{name}, {count} of {shape.vocab_size}", make)
        listed = f"{LISTED} tokens of {shape.vocab_size}, {count} rows"
        yield Row("penalties", listed, partial(_adjust, count, shape.vocab_size))
        masks = partial(_ban, count, shape.vocab_size)
        yield Row("masks", f"nearly all of {shape.vocab_size}, {count} rows", masks)
        told = partial(_tell, count, shape.vocab_size)
        yield Row("log-probabilities", f"20 of {shape.vocab_size}, {count} rows", told)


def _choose(
    count: int,
    vocabulary: int,
    setting: tuple[float, int, float, float],
    device: torch.device,
) -> Prepared:
    temperature, top_k, top_p, min_p = setting
    logits = WIDTH * torch.randn(count, vocabulary, device=device)
    keys = torch.randint(0, 2**31, (count, 2), device=device, dtype=torch.int32)

    def column(value: float, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((count,), value, dtype=dtype, device=device)

    columns = column(temperature), column(top_k, torch.int32), column(top_p), column(min_p)
    twin = partial(logits.argmax, 1) if temperature == 0 else None
    usual = twin or partial(_usual, logits, setting)
    return Prepared(
        partial(choose, logits, *columns, keys, search=search_for([setting])),
        choose_floor(count, vocabulary, drawn=temperature > 0),
        twin,
        {"torch": lambda: usual},
    )


def _usual(logits: Tensor, setting: tuple[float, int, float, float]) -> Tensor:
    """The usual way: a sort if needed, and torch's own sampling; does not wait either."""
    temperature, top_k, top_p, min_p = setting
    scaled = logits / temperature
    if min_p:
        least = scaled.amax(1, keepdim=True) + torch.tensor(min_p).log().item()
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if top_k or top_p < 1:
        scaled, ids = scaled.sort(1, descending=True)
        if top_k:
            scaled[:, top_k:] = -torch.inf
        probabilities = scaled.softmax(1)
        before = probabilities.cumsum(1) - probabilities
        probabilities = probabilities.masked_fill(before >= top_p, 0)
        return ids.gather(1, probabilities.multinomial(1))
    return scaled.softmax(1).multinomial(1)


def _adjust(count: int, vocabulary: int, device: torch.device) -> Prepared:
    """Adjust logits of answers with some tokens; in place, so the twin has its own logits."""
    logits, listed = (
        WIDTH * torch.randn(count, vocabulary, device=device),
        min(LISTED, vocabulary),
    )
    starts = listed * torch.arange(count + 1, dtype=torch.int32, device=device)
    every = torch.arange(count, dtype=torch.int32, device=device)
    headers = torch.stack([every, starts[:-1], starts[:-1], starts[1:]], 1)
    factors = torch.tensor([[1.1, 0.1, 0.1]], device=device).repeat(count, 1)
    tokens = torch.rand(count, vocabulary, device=device).topk(listed).indices.int().flatten()
    given = headers, factors, tokens, torch.ones(count * listed, device=device)
    others = logits.clone()

    def run() -> Tensor:
        adjust(logits, *given)
        return logits

    def twin() -> Tensor:
        adjust_twin(others, *given)
        return others

    return Prepared(run, adjust_floor(count, count * listed), twin)


def _ban(count: int, vocabulary: int, device: torch.device) -> Prepared:
    """Ban all but one of each 32 tokens; banned logits cannot be compared by distance."""
    logits = WIDTH * torch.randn(count, vocabulary, device=device)
    every = torch.arange(count, dtype=torch.int32, device=device)
    bits = torch.ones(count, -(-vocabulary // 32), dtype=torch.int32, device=device)
    banned = torch.arange(vocabulary, device=device).remainder(32).bool().repeat(count, 1)
    usual = partial(logits.masked_fill_, banned, -torch.inf)
    floor = apply_bitmasks_floor(count, vocabulary)
    return Prepared(
        partial(apply_bitmasks, logits, every, bits), floor, None, {"torch": lambda: usual}
    )


def _tell(count: int, vocabulary: int, device: torch.device) -> Prepared:
    logits, most = WIDTH * torch.randn(count, vocabulary, device=device), min(20, vocabulary)
    every = torch.arange(count, dtype=torch.int32, device=device)
    room = torch.empty(logprobs_size(count, most), dtype=torch.int32, device=device)
    told = logprobs_views(room, count, most)

    def ours() -> Tensor:
        gather_logprobs(logits, every, every, told)
        return told.chosen

    def by_torch() -> Tensor:
        logprobs = logits.log_softmax(1)
        logprobs.topk(most)
        return logprobs.gather(1, every.long().unsqueeze(1))[:, 0]

    return Prepared(
        ours, gather_logprobs_floor(count, vocabulary), by_torch, {"torch": lambda: by_torch}
    )
