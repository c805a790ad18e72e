"""The same as the sampler's torch path, by Triton kernels, with one wait for the device.

All that rows ask for goes to the device in one copy from pinned memory, nobody waiting: a few
numbers for each row, masks, and sparse lists of biases, bans and penalties. What comes back is
one copy, too: tokens, and the log-probabilities that were asked for. Only a row that wants to
be told more than MOST_TOLD of the likeliest goes through torch, and waits for that.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.kernels.gpu.sampling.adjusting import adjust, ban
from engine.kernels.gpu.sampling.choosing import Sizes, choose
from engine.kernels.gpu.sampling.telling import tell as tell_on_device
from engine.kernels.searching import Search, search_for
from engine.kernels.telling import MOST_TOLD, told_into, told_numbers
from engine.kernels.uploading import Part, aligned, uploaded
from engine.request import LARGEST_TEMPERATURE, Logprobs, Sampling
from engine.sampling.changes import changes_of
from engine.sampling.hearing import heard
from engine.sampling.logprobs import logprobs_of, tell
from engine.sampling.shaping import ShapedRow, end_all_the_same

Name = tuple[int, int]
"""A draw's noise_key."""
DEFAULT_SIZES = Sizes()


@dataclass(frozen=True, slots=True)
class Rows:
    """What rows of logits ask for; which of them are shaped, and which want to be told more.

    A temperature that is as good as none is 0.
    """

    samplings: Seq[Sampling]
    temperatures: Seq[float]
    names: Seq[Name]
    shaped: Seq[ShapedRow]
    asking: Seq[int]

    @property
    def search(self) -> Search:
        """How far any of them may have to be searched."""
        cuts = ((one.top_k, one.top_p, one.min_p) for one in self.samplings)
        return search_for(
            (warm, *cut) for warm, cut in zip(self.temperatures, cuts, strict=True)
        )

    def told_beside(self, vocabulary: int) -> list[int]:
        """For each asking row, how many of the likeliest."""
        asked = [self.samplings[row].logprobs or 0 for row in self.asking]
        return [vocabulary if most < 0 else min(most, vocabulary) for most in asked]


def draw(
    logits: Tensor, rows: Rows, sizes: Sizes = DEFAULT_SIZES
) -> tuple[list[int], dict[int, Logprobs]]:
    """A token for each row of `logits` [rows, vocabulary] float32, which may change; and what
    the asking rows are told."""
    count, vocabulary = logits.shape
    there = uploaded(
        [*_settings(rows), *(changes_of(rows.shaped, vocabulary) or ())], logits.device
    )
    temperatures, top_k, top_p, min_p, names, instead, asked = there[:7]
    before, places = _as_they_are(logits, rows, asked)
    _shape(logits, there[7:])
    most = rows.told_beside(vocabulary)
    widest = max((one for one in most if one <= MOST_TOLD), default=0)
    ends = np.cumsum(
        [aligned(count), aligned(count), told_numbers(len(asked), widest)]
    ).tolist()
    said = torch.empty(ends[-1], dtype=torch.int32, device=logits.device)
    tokens, alive, told = said.tensor_split(ends[:-1])
    choose(
        logits, temperatures, top_k, top_p, min_p, names.view(-1, 2),
        instead=instead, out=tokens, alive=alive, sizes=sizes, search=rows.search,
    )  # fmt: skip
    chosen = tokens.index_select(0, asked)
    tell_on_device(before, places, chosen, told_into(told, len(asked), widest))
    said = said.cpu()  # the one wait
    tokens, alive, told = said.tensor_split(ends[:-1])
    for one in rows.shaped:
        if not alive[one.row]:
            end_all_the_same(one)
    drawn: list[int] = tokens[:count].tolist()
    of_asking = [drawn[row] for row in rows.asking]
    said_of = heard(told_into(told, len(asked), widest), of_asking, most)
    logprobs = dict(zip(rows.asking, said_of, strict=True))
    for index, many in enumerate(most):
        if many > MOST_TOLD:
            of_row = logprobs_of(before.index_select(0, places[index : index + 1]))
            (logprobs[rows.asking[index]],) = tell(of_row, [of_asking[index]], many)
    return drawn, logprobs


def _settings(rows: Rows) -> Iterator[Part]:
    """Of all rows, as `choose` wants them; then the asking ones."""
    asked = rows.samplings
    yield np.array([min(one, LARGEST_TEMPERATURE) for one in rows.temperatures], np.float32)
    yield np.array([one.top_k for one in asked], np.int32)
    yield np.array([one.top_p for one in asked], np.float32)
    yield np.array([one.min_p for one in asked], np.float32)
    yield np.array(rows.names, np.uint32).view(np.int32)
    instead = np.zeros(len(asked), np.int32)
    for one in rows.shaped:
        instead[one.row] = one.shaping.instead
    yield instead
    yield np.array(rows.asking, np.int32)


def _shape(logits: Tensor, parts: Seq[Tensor]) -> None:
    if not parts:
        return
    masked, bits, headers, factors, tokens, values = parts
    if len(masked):
        ban(logits, masked, bits.view(len(masked), -1))
    if len(headers):
        adjust(logits, headers.view(-1, 4), factors.view(-1, 3), tokens, values)


def _as_they_are(logits: Tensor, rows: Rows, asked: Tensor) -> tuple[Tensor, Tensor]:
    """Where to find the asking rows as the model gave them, whatever is done to `logits`."""
    if {one.row for one in rows.shaped}.isdisjoint(rows.asking):
        return logits, asked
    places = torch.arange(len(asked), dtype=torch.int32, device=logits.device)
    return logits.index_select(0, asked), places
