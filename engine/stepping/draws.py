"""How the tokens of a step that is begun ahead are drawn, and what came of it."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from engine.attention.plan import Ask, Drawing, DrawNumbers
from engine.kernels.token_logprobs import logprobs_views
from engine.request import LARGEST_TEMPERATURE, Logprobs
from engine.running.runner import Sent
from engine.sampling.changes import changes_of
from engine.sampling.device_logprobs import unpack_logprobs
from engine.sampling.logits_processor import ProcessedRow, force_end_token
from engine.sampling.noise import noise_key
from engine.sampling.sampler import SMALLEST_TEMPERATURE, Sampler, SamplerRow
from engine.stepping.rows import Row


class Asked(NamedTuple):
    """How a step's rows of logits are drawn from, and which are not as the model left them."""

    drawing: Drawing
    shaped: Seq[ProcessedRow]

    @classmethod
    def of(cls, sampler: Sampler, rows: Seq[Row], wanted: Iterable[int]) -> "Asked":
        """By what is known now of the sequences of those `wanted`.

        The others are over; what is drawn in their rows means nothing.
        """
        wanted = list(wanted)
        shaped = sampler.processed_rows((row, SamplerRow(rows[row].seq)) for row in wanted)
        draws = [_numbers(row) for row in rows]
        for one in shaped:
            draws[one.row] = draws[one.row]._replace(instead=one.processor.instead)
        asks = list(_asks(rows, wanted, sampler.vocabulary))
        return cls(Drawing(draws, changes_of(shaped, sampler.vocabulary), asks), shaped)

    def read(self, sent: Sent) -> tuple[list[int], dict[int, Logprobs]]:
        """A token for each row, and what the asking rows are told; waits for the device.

        Of sequences to which nothing was left it is said why they have failed.
        """
        tokens = sent.tokens.read()
        if sent.alive is not None:
            alive = sent.alive.read()
            for one in self.shaped:
                if not alive[one.row]:
                    force_end_token(one)
        if sent.told is None:
            return tokens, {}
        asks = self.drawing.asks
        most = [ask.most for ask in asks]
        numbers = torch.tensor(sent.told.read(), dtype=torch.int32)
        told = unpack_logprobs(
            logprobs_views(numbers, len(most), max(most)),
            [tokens[ask.row] for ask in asks],
            most,
        )
        return tokens, dict(zip((ask.row for ask in asks), told, strict=True))


def _numbers(row: Row) -> DrawNumbers:
    sampling = row.seq.request.sampling
    temperature = min(sampling.temperature, LARGEST_TEMPERATURE)
    if temperature <= SMALLEST_TEMPERATURE:
        return DrawNumbers(0.0, 0, 1.0, 0.0, (0, 0))
    key = noise_key(sampling.seed, sampling.sample_index, row.start + 1)
    return DrawNumbers(temperature, sampling.top_k, sampling.top_p, sampling.min_p, key)


def _asks(rows: Seq[Row], wanted: Iterable[int], vocabulary: int) -> Iterator[Ask]:
    for row in wanted:
        most = rows[row].seq.request.sampling.logprobs
        if most is not None:
            yield Ask(row, min(most, vocabulary))
