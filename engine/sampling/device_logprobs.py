"""Log-probabilities that a kernel gathered on the device, turned into Logprobs for each row."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq

from engine.kernels.token_logprobs import TokenLogprobs
from engine.request import Logprob, Logprobs
from engine.sampling.logprobs import LEAST_LOGPROB


def unpack_logprobs(
    told: TokenLogprobs, tokens: Seq[int], most: Seq[int]
) -> Iterator[Logprobs]:
    """For each row its sampled token first, then its `most` likeliest tokens, best first.

    `tokens` were sampled for the rows of `told`, which must be in host memory.
    """
    columns = told.chosen, told.ranks, told.tokens, told.logprobs
    rows = zip(tokens, *(column.tolist() for column in columns), most, strict=True)
    for token, found, rank, likeliest, logprobs, count in rows:
        beside = zip(likeliest[:count], logprobs, strict=False)
        yield (Logprob(token, max(found, LEAST_LOGPROB), rank), *_ranked(beside))


def _ranked(beside: Iterable[tuple[int, float]]) -> Iterator[Logprob]:
    """The likeliest tokens, best first; tokens that tie have the rank of the first of them."""
    before, rank = None, 0
    for place, (token, logprob) in enumerate(beside, 1):
        rank = rank if logprob == before else place
        before = logprob
        yield Logprob(token, max(logprob, LEAST_LOGPROB), rank)
