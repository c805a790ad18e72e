"""The draw of a step that is launched ahead: its settings now, its tokens later."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch

from engine.attention.plan import LogprobRequest, RowSampling, SamplingPlan
from engine.kernels.token_logprobs import logprobs_views
from engine.request import LARGEST_TEMPERATURE, Logprobs, Sampling
from engine.running.runner import PendingTokens
from engine.sampling.changes import changes_of
from engine.sampling.device_logprobs import unpack_logprobs
from engine.sampling.logits_processor import ProcessedRow, force_end_token
from engine.sampling.noise import noise_key
from engine.sampling.sampler import SMALLEST_TEMPERATURE, Sampler, SamplerRow
from engine.stepping.rows import DecodeRow


class PendingDraw(NamedTuple):
    """How a step's rows are sampled; `processed` rows have masks, bans, biases or penalties."""

    sampling: SamplingPlan
    processed: Seq[ProcessedRow]

    @classmethod
    def of(cls, sampler: Sampler, rows: Seq[DecodeRow], wanted: Iterable[int]) -> "PendingDraw":
        """Made from the current state of the sequences of the `wanted` rows.

        The sequences of other rows have finished; the tokens of those rows are ignored.
        """
        wanted = list(wanted)
        shaped = sampler.processed_rows((row, SamplerRow(rows[row].seq)) for row in wanted)
        draws = [row_sampling(row.seq.request.sampling, row.start + 1) for row in rows]
        for one in shaped:
            draws[one.row] = draws[one.row]._replace(instead=one.processor.instead)
        asks = list(_asks(rows, wanted, sampler.vocabulary))
        return cls(SamplingPlan(draws, changes_of(shaped, sampler.vocabulary), asks), shaped)

    def read(self, pending: PendingTokens) -> tuple[list[int], dict[int, Logprobs]]:
        """Wait for the device; a token for each row, and requested log-probabilities by row.

        Sets `failure` on sequences whose grammar left no token to draw.
        """
        tokens = pending.tokens.read()
        if pending.alive is not None:
            alive = pending.alive.read()
            for one in self.processed:
                if not alive[one.row]:
                    force_end_token(one)
        if pending.logprobs is None:
            return tokens, {}
        asks = self.sampling.logprob_requests
        most = [ask.most for ask in asks]
        numbers = torch.tensor(pending.logprobs.read(), dtype=torch.int32)
        told = unpack_logprobs(
            logprobs_views(numbers, len(most), max(most)),
            [tokens[ask.row] for ask in asks],
            most,
        )
        return tokens, dict(zip((ask.row for ask in asks), told, strict=True))


def row_sampling(sampling: Sampling, position: int) -> RowSampling:
    """How the token at this position of a sequence is drawn."""
    temperature = min(sampling.temperature, LARGEST_TEMPERATURE)
    if temperature <= SMALLEST_TEMPERATURE:
        return RowSampling(0.0, 0, 1.0, 0.0, (0, 0))
    key = noise_key(sampling.seed, sampling.sample_index, position)
    return RowSampling(temperature, sampling.top_k, sampling.top_p, sampling.min_p, key)


def _asks(
    rows: Seq[DecodeRow], wanted: Iterable[int], vocabulary: int
) -> Iterator[LogprobRequest]:
    for row in wanted:
        most = rows[row].seq.request.sampling.logprobs
        if most is not None:
            yield LogprobRequest(row, min(most, vocabulary))
