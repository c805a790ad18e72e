"""From logits to one token per row, vectorised over the batch.

In this order, which is vLLM's (bans and a finite bias may be swapped):

1. log-probabilities are noted, of the logits as the model gave them;
2. masks: `allowed_token_ids`, and the grammar's;
3. `logit_bias`;
4. bans: `bad_words`, ends before `min_tokens`;
5. penalties: repetition, then frequency and presence;
6. temperature; 0, or so small that logits over it would overflow, takes the largest here;
7. min-p, top-k, top-p;
8. noise, and the largest wins.

Where all of this leaves nothing, an end token comes all the same: the smallest that ends this
answer, else the model's own, else token 0. An answer that its grammar does not let end there
has failed. A row depends on its request and on the tokens
before it, never on the other rows; only rows that ask for a stage go through it.
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
from engine.sampling.logprobs import logprobs_of, tell
from engine.sampling.masks import Grammars
from engine.sampling.noise import add_gumbel, gumbel, noise_key
from engine.sampling.shaping import (
    ShapedRow,
    Shaping,
    end_all_the_same,
    is_shaped,
    shape,
)
from engine.sampling.truncation import Kept, truncate, truncates
from engine.scheduling.sequence import Sequence

SMALLEST_TEMPERATURE = 1e-5
Noisiest: TypeAlias = Callable[[Tensor, Tensor], list[int]]
"""Of whole rows of logits, by their keys: which may change them."""


class Draw(NamedTuple):
    """One row to sample: what comes behind all tokens of `seq`, had `drafted` come, too."""

    seq: Sequence
    drafted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token for each row, and log-probabilities for the rows whose request wants them."""

    tokens: list[int]
    logprobs: dict[int, Logprobs]


class Sampler:
    """Keeps what sequences' pasts do to their logits, for as long as there is the sequence.

    `grammars` makes the masks of requests with a grammar; who loads the engine puts it there.
    Logits on a CUDA device go through Triton kernels (engine/sampling/on_gpu.py), others with
    `kernels` only, as tests want it; those on a CPU through `native` kernels where there are.
    """

    def __init__(
        self,
        vocabulary: int,
        grammars: Grammars | None = None,
        *,
        kernels: bool = False,
        native: CpuKernels | None = None,
    ) -> None:
        self.vocabulary = vocabulary
        self.grammars = grammars
        self.kernels, self.native = kernels, native
        self._shapings: WeakKeyDictionary[Sequence, Shaping] = WeakKeyDictionary()

    @property
    def remembered(self) -> int:
        """Sequences whose past is kept; those that ask for nothing have none."""
        return len(self._shapings)

    def check(self, seq: Sequence) -> None:
        """Raises UnknownToken, UnusableSampling or GrammarRefused for what is not done here."""
        check_sampling(seq.request, self.vocabulary, seq.end_tokens)
        if seq.request.sampling.grammar is not None:
            if self.grammars is None:
                raise UnusableSampling(f"{seq.request_id}: grammar: this engine knows none")
            self._shaping(seq)  # raises now what it would in the middle of a batch

    def sample(self, logits: Tensor, draws: Seq[Draw]) -> Drawn:
        """One token for each row of `logits` [rows, vocabulary] float32, which may change."""
        samplings = [draw.seq.request.sampling for draw in draws]
        asking = [row for row, one in enumerate(samplings) if one.logprobs is not None]
        shaped = self.shaped(enumerate(draws))
        if self.kernels or logits.is_cuda:
            from engine.sampling.on_gpu import Rows, draw  # wants Triton

            warmths = [
                one.temperature if one.temperature > SMALLEST_TEMPERATURE else 0.0
                for one in samplings
            ]
            rows = Rows(samplings, warmths, _names(draws, samplings), shaped, asking)
            return Drawn(*draw(logits, rows))
        noted = logprobs_of(_rows(logits, asking)) if asking else None
        if shaped:
            shape(logits, shaped)
        tokens = _choose(logits, draws, samplings, self._noisiest)
        _replace_dead_ends(logits, tokens, shaped)
        if noted is None:
            return Drawn(tokens, {})
        most = [samplings[row].logprobs or 0 for row in asking]
        return Drawn(tokens, _told(noted, asking, most, tokens))

    def shaped(self, draws: Iterable[tuple[int, Draw]]) -> list[ShapedRow]:
        """Those of some rows that ask for more than their own logits."""
        return [
            ShapedRow(row, draw.seq, draw.drafted, self._shaping(draw.seq))
            for row, draw in draws
            if is_shaped(draw.seq.request.sampling)
        ]

    def warm(self, device: torch.device) -> None:
        """Launch what any request may want, once: nothing is compiled while it waits."""
        if not (self.kernels or device.type == "cuda"):
            return
        wish = Sampling(top_p=0.5, logprobs=1, repetition_penalty=2, allowed_token_ids=(0,))
        seq = Sequence(Request(RequestId("warm"), (0,), wish))
        self.sample(torch.zeros(1, self.vocabulary, device=device), [Draw(seq)])

    def _noisiest(self, logits: Tensor, keys: Tensor) -> list[int]:
        if self.native is None:
            return _noisiest(logits, keys)
        tokens: list[int] = self.native.noisiest(logits, keys).tolist()
        return tokens

    def _shaping(self, seq: Sequence) -> Shaping:
        shaping = self._shapings.get(seq)
        if shaping is None:
            shaping = self._shapings[seq] = Shaping.of(seq, self.vocabulary, self.grammars)
        return shaping


def _choose(
    logits: Tensor, draws: Seq[Draw], samplings: Seq[Sampling], noisiest: Noisiest
) -> list[int]:
    """Draw where there is a temperature, take the largest elsewhere."""
    warm = [row for row, one in enumerate(samplings) if one.temperature > SMALLEST_TEMPERATURE]
    if not warm:
        return _largest(logits)
    if len(warm) == len(draws):
        return _drawn(logits, draws, samplings, noisiest)
    tokens = _largest(logits)
    chosen = [draws[row] for row in warm], [samplings[row] for row in warm]
    _put(tokens, warm, _drawn(logits[warm], *chosen, noisiest))
    return tokens


def _drawn(
    logits: Tensor, draws: Seq[Draw], samplings: Seq[Sampling], noisiest: Noisiest
) -> list[int]:
    """Temperature, in place; what is left then, and the largest of it with its noise."""
    temperatures = [min(one.temperature, LARGEST_TEMPERATURE) for one in samplings]
    logits.div_(torch.tensor(temperatures, device=logits.device).unsqueeze(1))
    keys = torch.tensor(_names(draws, samplings), device=logits.device)
    cut = [row for row, one in enumerate(samplings) if truncates(one)]
    if not cut:
        return noisiest(logits, keys)
    tokens = [0] * len(draws)
    whole = [row for row, one in enumerate(samplings) if not truncates(one)]
    if whole:
        _put(tokens, whole, noisiest(logits[whole], keys[whole]))
    for kept in truncate(logits[cut] if whole else logits, [samplings[row] for row in cut]):
        rows = [cut[row] for row in kept.rows]
        _put(tokens, rows, _noisiest_of(kept, keys[rows]))
    return tokens


def _names(draws: Seq[Draw], samplings: Seq[Sampling]) -> list[tuple[int, int]]:
    """What the noise of each row follows from."""
    return [
        noise_key(one.seed, one.sample_index, len(draw.seq.tokens) + len(draw.drafted))
        for one, draw in zip(samplings, draws, strict=True)
    ]


def _noisiest(logits: Tensor, keys: Tensor) -> list[int]:
    """Each row's largest with its noise, which is added in place."""
    add_gumbel(logits, keys)
    return _largest(logits)


def _noisiest_of(kept: Kept, keys: Tensor) -> list[int]:
    """The same of what is left of some rows."""
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
    """[rows]: the place of each row's largest, the first of several.

    On a CPU by numpy, which is ten times as fast as torch here.
    """
    if scores.device.type == "cpu":
        return torch.from_numpy(scores.numpy().argmax(1))
    return scores.argmax(1)


def _replace_dead_ends(logits: Tensor, tokens: list[int], shaped: Seq[ShapedRow]) -> None:
    """Only what is shaped can have lost all its tokens."""
    if not shaped:
        return
    rows = [one.row for one in shaped]
    left = logits[rows, [tokens[row] for row in rows]].tolist()
    for one, logit in zip(shaped, left, strict=True):
        if logit == -torch.inf:
            tokens[one.row] = end_all_the_same(one)


def _told(
    noted: Tensor, asking: Seq[int], most: Seq[int], tokens: Seq[int]
) -> dict[int, Logprobs]:
    """Rows that want equally many together."""
    told = dict[int, Logprobs]()
    for count in set(most):
        some = [index for index, one in enumerate(most) if one == count]
        part = _rows(noted, some)
        rows = [asking[index] for index in some]
        told |= zip(rows, tell(part, [tokens[row] for row in rows], count), strict=True)
    return told


def _rows(table: Tensor, rows: list[int]) -> Tensor:
    """Not copied if it is all of them."""
    return table if len(rows) == len(table) else table[rows]
