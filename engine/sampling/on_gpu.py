"""The sampler's work done by Triton kernels, with one wait for the device.

One asynchronous copy from pinned memory brings all settings to the device: a few numbers for
each row, bitmasks, and sparse lists of biases, bans and penalties. One copy brings back the
tokens and the requested log-probabilities. Only a row that wants more than MOST_TOP_LOGPROBS
of the likeliest tokens goes through torch, and waits for it.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.kernels.gpu.sampling.adjusting import adjust, apply_bitmasks
from engine.kernels.gpu.sampling.choosing import Sizes, choose
from engine.kernels.gpu.sampling.token_logprobs import gather_logprobs as tell_on_device
from engine.kernels.searching import Search, search_for
from engine.kernels.token_logprobs import MOST_TOP_LOGPROBS, logprobs_size, logprobs_views
from engine.kernels.uploading import Part, aligned, uploaded
from engine.request import LARGEST_TEMPERATURE, Logprobs, Sampling
from engine.sampling.changes import changes_of
from engine.sampling.device_logprobs import unpack_logprobs
from engine.sampling.logits_processor import ProcessedRow, force_end_token
from engine.sampling.logprobs import logprobs_of, top_logprobs

NoiseKey = tuple[int, int]
"""See noise_key."""
DEFAULT_SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class SamplingInputs:
    """The settings of rows of logits; `asking` are the rows that want log-probabilities.

    `shaped` are the rows whose logits are processed. Temperatures near 0 must be 0.
    """

    samplings: Seq[Sampling]
    temperatures: Seq[float]
    noise_keys: Seq[NoiseKey]
    shaped: Seq[ProcessedRow]
    asking: Seq[int]

    @property
    def search(self) -> Search:
        """The furthest search that any row needs."""
        cuts = ((one.top_k, one.top_p, one.min_p) for one in self.samplings)
        return search_for(
            (warm, *cut) for warm, cut in zip(self.temperatures, cuts, strict=True)
        )

    def num_top_logprobs(self, vocabulary: int) -> list[int]:
        """For each asking row, how many of its likeliest tokens it wants."""
        asked = [self.samplings[row].logprobs or 0 for row in self.asking]
        return [vocabulary if most < 0 else min(most, vocabulary) for most in asked]


def sample_on_gpu(
    logits: Tensor, rows: SamplingInputs, sizes: Sizes = DEFAULT_SIZES
) -> tuple[list[int], dict[int, Logprobs]]:
    """A token for each row of `logits` [rows, vocabulary] float32, which may change; and the
    log-probabilities of the asking rows.
    """
    count, vocabulary = logits.shape
    there = uploaded(
        [*_settings(rows), *(changes_of(rows.shaped, vocabulary) or ())], logits.device
    )
    temperatures, top_k, top_p, min_p, noise_keys, instead, asked = there[:7]
    before, places = _unprocessed(logits, rows, asked)
    _shape(logits, there[7:])
    most = rows.num_top_logprobs(vocabulary)
    widest = max((one for one in most if one <= MOST_TOP_LOGPROBS), default=0)
    ends = np.cumsum(
        [aligned(count), aligned(count), logprobs_size(len(asked), widest)]
    ).tolist()
    said = torch.empty(ends[-1], dtype=torch.int32, device=logits.device)
    tokens, alive, told = said.tensor_split(ends[:-1])
    choose(
        logits, temperatures, top_k, top_p, min_p, noise_keys.view(-1, 2),
        instead=instead, out=tokens, alive=alive, sizes=sizes, search=rows.search,
    )  # fmt: skip
    chosen = tokens.index_select(0, asked)
    tell_on_device(before, places, chosen, logprobs_views(told, len(asked), widest))
    said = said.cpu()  # the one wait
    tokens, alive, told = said.tensor_split(ends[:-1])
    for one in rows.shaped:
        if not alive[one.row]:
            force_end_token(one)
    drawn: list[int] = tokens[:count].tolist()
    of_asking = [drawn[row] for row in rows.asking]
    said_of = unpack_logprobs(logprobs_views(told, len(asked), widest), of_asking, most)
    logprobs = dict(zip(rows.asking, said_of, strict=True))
    for index, many in enumerate(most):
        if many > MOST_TOP_LOGPROBS:
            of_row = logprobs_of(before.index_select(0, places[index : index + 1]))
            (logprobs[rows.asking[index]],) = top_logprobs(of_row, [of_asking[index]], many)
    return drawn, logprobs


def _settings(rows: SamplingInputs) -> Iterator[Part]:
    """The settings of all rows in the order of `choose`; then which rows are asking."""
    asked = rows.samplings
    yield np.array([min(one, LARGEST_TEMPERATURE) for one in rows.temperatures], np.float32)
    yield np.array([one.top_k for one in asked], np.int32)
    yield np.array([one.top_p for one in asked], np.float32)
    yield np.array([one.min_p for one in asked], np.float32)
    yield np.array(rows.noise_keys, np.uint32).view(np.int32)
    instead = np.zeros(len(asked), np.int32)
    for one in rows.shaped:
        instead[one.row] = one.processor.instead
    yield instead
    yield np.array(rows.asking, np.int32)


def _shape(logits: Tensor, parts: Seq[Tensor]) -> None:
    if not parts:
        return
    masked, bits, headers, factors, tokens, values = parts
    if len(masked):
        apply_bitmasks(logits, masked, bits.view(len(masked), -1))
    if len(headers):
        adjust(logits, headers.view(-1, 4), factors.view(-1, 3), tokens, values)


def _unprocessed(logits: Tensor, rows: SamplingInputs, asked: Tensor) -> tuple[Tensor, Tensor]:
    """A table with the asking rows' unprocessed logits, and their indices in it."""
    if {one.row for one in rows.shaped}.isdisjoint(rows.asking):
        return logits, asked
    places = torch.arange(len(asked), dtype=torch.int32, device=logits.device)
    return logits.index_select(0, asked), places
