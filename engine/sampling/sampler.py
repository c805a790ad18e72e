"""The sampler: from logits to one token per row, vectorised over the batch.

In this order, which is vLLM's (bans and a finite bias may be swapped):

1. log-probabilities, of the logits as the model gave them;
2. token bitmasks: `allowed_token_ids`, and the grammar's;
3. `logit_bias`;
4. bans: `bad_words`, and end tokens before `min_tokens`;
5. penalties: repetition, then frequency and presence;
6. temperature; 0, or one so small that dividing would overflow, takes the largest logit here;
7. min-p, top-k, top-p;
8. Gumbel noise is added, and the largest logit wins (the Gumbel-max trick).

If this leaves no token, an end token is forced: the smallest that ends this answer, else the
model's own, else token 0. The answer fails if its grammar does not let it end there. A row
depends on its request and the tokens before it, never on other rows; only rows that need a
stage go through it.
"""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from engine.errors import UnusableSampling
from engine.kernels.cpu.native import CpuKernels
from engine.request import LARGEST_TEMPERATURE, Logprobs, Request, RequestId, Sampling
from engine.sampling.checks import check_sampling
from engine.sampling.logits_processor import (
    LogitsProcessor,
    ProcessedRow,
    changes_logits,
    force_end_token,
    process_logits,
)
from engine.sampling.logprobs import logprobs_of, top_logprobs
from engine.sampling.masks import MatcherFactory
from engine.sampling.noise import add_gumbel, gumbel, noise_key
from engine.sampling.truncation import Kept, truncate, truncates
from engine.scheduling.sequence import Sequence

SMALLEST_TEMPERATURE = 1e-5
GumbelArgmax: TypeAlias = Callable[[Tensor, Tensor], list[int]]
"""Logits [rows, vocabulary], which may be modified, and noise keys [rows, 2] to tokens."""


class SamplerRow(NamedTuple):
    """A row of logits: it predicts the token behind those of `seq` and the `drafted` ones."""

    seq: Sequence
    drafted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """A token for each row, and log-probabilities for the rows whose request wants them."""

    tokens: list[int]
    logprobs: dict[int, Logprobs]


class Sampler:
    """Keeps a LogitsProcessor for each sequence that needs one, as long as the sequence lives.

    `grammars` makes the matchers of requests with a grammar; engine/loading.py sets it. Logits
    on a CUDA device go through Triton kernels (engine/sampling/on_gpu.py); tests send others
    there by `kernels`. Logits on a CPU go through the `native` kernels if there are any.
    """

    def __init__(
        self,
        vocabulary: int,
        grammars: MatcherFactory | None = None,
        *,
        kernels: bool = False,
        native: CpuKernels | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.grammars = grammars
        self.kernels, self.native = kernels, native
        self._processors: WeakKeyDictionary[Sequence, LogitsProcessor] = WeakKeyDictionary()

    def check(self, seq: Sequence) -> None:
        """Raises UnknownToken, UnusableSampling or GrammarRefused for an unusable request."""
        check_sampling(seq.request, self.vocabulary, seq.end_tokens)
        if seq.request.sampling.grammar is not None:
            if self.grammars is None:
                raise UnusableSampling(f"{seq.request_id}: grammar: this engine knows none")
            self._processor_of(seq)  # raises here and not in the middle of a batch

    def sample(
        self, logits: Tensor, draws: Seq[SamplerRow], *, logprobs: bool = True
    ) -> SamplerOutput:
        """One token for each row of `logits` [rows, vocabulary] float32, which may change.

        Without `logprobs`, none are computed for requests that want them.
        """
        samplings = [draw.seq.request.sampling for draw in draws]
        asking = [row for row, one in enumerate(samplings) if one.logprobs is not None]
        asking = asking if logprobs else []
        shaped = self.processed_rows(enumerate(draws))
        if self.kernels or logits.is_cuda:
            from engine.sampling.on_gpu import SamplingInputs, sample_on_gpu  # needs Triton

            temperatures = [
                one.temperature if one.temperature > SMALLEST_TEMPERATURE else 0.0
                for one in samplings
            ]
            rows = SamplingInputs(
                samplings, temperatures, _noise_keys(draws, samplings), shaped, asking
            )
            return SamplerOutput(*sample_on_gpu(logits, rows))
        noted = logprobs_of(_rows(logits, asking)) if asking else None
        if shaped:
            process_logits(logits, shaped)
        tokens = _choose(logits, draws, samplings, self._gumbel_argmax)
        _replace_dead_ends(logits, tokens, shaped)
        if noted is None:
            return SamplerOutput(tokens, {})
        most = [samplings[row].logprobs or 0 for row in asking]
        return SamplerOutput(tokens, _told(noted, asking, most, tokens))

    def processed_rows(self, draws: Iterable[tuple[int, SamplerRow]]) -> list[ProcessedRow]:
        """The rows whose logits must be processed."""
        return [
            ProcessedRow(row, draw.seq, draw.drafted, self._processor_of(draw.seq))
            for row, draw in draws
            if changes_logits(draw.seq.request.sampling)
        ]

    def warm(self, device: torch.device) -> None:
        """Launch every kernel once, so that none is compiled while a request waits."""
        if not (self.kernels or device.type == "cuda"):
            return
        wish = Sampling(top_p=0.5, logprobs=1, repetition_penalty=2, allowed_token_ids=(0,))
        seq = Sequence(Request(RequestId("warm"), (0,), wish))
        self.sample(torch.zeros(1, self.vocabulary, device=device), [SamplerRow(seq)])

    def _gumbel_argmax(self, logits: Tensor, keys: Tensor) -> list[int]:
        if self.native is None:
            return _torch_gumbel_argmax(logits, keys)
        tokens: list[int] = self.native.gumbel_argmax(logits, keys).tolist()
        return tokens

    def _processor_of(self, seq: Sequence) -> LogitsProcessor:
        processor = self._processors.get(seq)
        if processor is None:
            processor = self._processors[seq] = LogitsProcessor.of(
                seq, self.vocabulary, self.grammars
            )
        return processor


def _choose(
    logits: Tensor, draws: Seq[SamplerRow], samplings: Seq[Sampling], argmax: GumbelArgmax
) -> list[int]:
    """Sample the rows with a temperature; take the largest logit of the others."""
    warm = [row for row, one in enumerate(samplings) if one.temperature > SMALLEST_TEMPERATURE]
    if not warm:
        return _largest(logits)
    if len(warm) == len(draws):
        return _drawn(logits, draws, samplings, argmax)
    tokens = _largest(logits)
    chosen = [draws[row] for row in warm], [samplings[row] for row in warm]
    _put(tokens, warm, _drawn(logits[warm], *chosen, argmax))
    return tokens


def _drawn(
    logits: Tensor, draws: Seq[SamplerRow], samplings: Seq[Sampling], argmax: GumbelArgmax
) -> list[int]:
    """Apply temperature in place, truncate, add noise, and take the largest logit."""
    temperatures = [min(one.temperature, LARGEST_TEMPERATURE) for one in samplings]
    logits.div_(torch.tensor(temperatures, device=logits.device).unsqueeze(1))
    keys = torch.tensor(_noise_keys(draws, samplings), device=logits.device)
    cut = [row for row, one in enumerate(samplings) if truncates(one)]
    if not cut:
        return argmax(logits, keys)
    tokens = [0] * len(draws)
    whole = [row for row, one in enumerate(samplings) if not truncates(one)]
    if whole:
        _put(tokens, whole, argmax(logits[whole], keys[whole]))
    for kept in truncate(logits[cut] if whole else logits, [samplings[row] for row in cut]):
        rows = [cut[row] for row in kept.rows]
        _put(tokens, rows, _truncated_argmax(kept, keys[rows]))
    return tokens


def _noise_keys(draws: Seq[SamplerRow], samplings: Seq[Sampling]) -> list[tuple[int, int]]:
    """The noise key of each row."""
    return [
        noise_key(one.seed, one.sample_index, len(draw.seq.tokens) + len(draw.drafted))
        for one, draw in zip(samplings, draws, strict=True)
    ]


def _torch_gumbel_argmax(logits: Tensor, keys: Tensor) -> list[int]:
    """Add noise in place; the largest of each row."""
    add_gumbel(logits, keys)
    return _largest(logits)


def _truncated_argmax(kept: Kept, keys: Tensor) -> list[int]:
    """The same for truncated rows."""
    best = _argmax(kept.logits + gumbel(keys, kept.ids)).unsqueeze(1)
    tokens: list[int] = kept.ids.gather(1, best)[:, 0].tolist()
    return tokens


def _put(tokens: list[int], rows: Seq[int], some: Seq[int]) -> None:
    for row, token in zip(rows, some, strict=True):
        tokens[row] = token


def _largest(logits: Tensor) -> list[int]:
    tokens: list[int] = _argmax(logits).tolist()
    return tokens


def _argmax(scores: Tensor) -> Tensor:
    """[rows]: the index of each row's largest, the first of several.

    On a CPU by numpy, which is ten times as fast as torch here.
    """
    if scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().argmax(1))
    return scores.argmax(1)


def _replace_dead_ends(logits: Tensor, tokens: list[int], shaped: Seq[ProcessedRow]) -> None:
    """Force an end token in rows without an allowed token; only processed rows can be so."""
    if not shaped:
        return
    rows = [one.row for one in shaped]
    left = logits[rows, [tokens[row] for row in rows]].tolist()
    for one, logit in zip(shaped, left, strict=True):
        if logit == -torch.inf:
            tokens[one.row] = force_end_token(one)


def _told(
    noted: Tensor, asking: Seq[int], most: Seq[int], tokens: Seq[int]
) -> dict[int, Logprobs]:
    """Log-probabilities by row; rows that want equally many are computed together."""
    told = dict[int, Logprobs]()
    for count in set(most):
        some = [index for index, one in enumerate(most) if one == count]
        part = _rows(noted, some)
        rows = [asking[index] for index in some]
        told |= zip(rows, top_logprobs(part, [tokens[row] for row in rows], count), strict=True)
    return told


def _rows(table: Tensor, rows: list[int]) -> Tensor:
    """Some rows of `table`, which is not copied if it is all of them."""
    return table if len(rows) == len(table) else table[rows]
