"""Drafts of several tokens that a device draws one behind the other, before the host reads any.

A pass of a draft model or a draft head takes its tokens from where the pass before it drew them
(see Plan.sources). So the host waits once for all of a draft's tokens, not once for each, and
the device does not wait for the host between the passes.

    device   | pass 1 | pass 2 | pass 3 |
    host       launch 1, 2, 3             read all

That is possible where no draw depends on the tokens before it: without grammars, penalties,
biases and bans. Passes behind a token that ends its answer are in vain; their tokens are cut.
"""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple

from engine.attention.plan import SamplingPlan
from engine.running.runner import PendingTokens
from engine.sampling.logits_processor import changes_logits
from engine.scheduling.sequence import Sequence
from engine.stepping.pending_draw import row_sampling


class DrawnRows(NamedTuple):
    """The tokens that one pass draws, and which of its draws are whose."""

    rows: Mapping[Sequence, int]
    pending: PendingTokens


Launch = Callable[[Seq[Sequence], int, Seq[int], SamplingPlan], PendingTokens]
"""Launches a pass over the last of so many drafts of these sequences, each from this draw of
the last pass, and draws behind it.
"""


def can_be_chained(seqs: Iterable[Sequence]) -> bool:
    """Whether drafts of these can be drawn before those in front of them are known."""
    return not any(changes_logits(seq.request.sampling) for seq in seqs)


def draws_behind(seqs: Iterable[Sequence], drafted: int = 0) -> SamplingPlan:
    """How the tokens behind so many drafts of these sequences are drawn."""
    return SamplingPlan(
        [row_sampling(seq.request.sampling, len(seq.tokens) + drafted) for seq in seqs]
    )


def draft_chained(
    first: DrawnRows, granted: Mapping[Sequence, int], launch: Launch
) -> dict[Sequence, list[int]]:
    """As many drafts as were `granted`, of sequences that `first` drew a token for.

    A draft ends earlier with a token that ends the answer: as `draft_in_turn` has it.
    """
    seqs = [seq for seq in granted if seq in first.rows]
    passes = [DrawnRows({seq: first.rows[seq] for seq in seqs}, first.pending)]
    while behind := [seq for seq in seqs if granted[seq] > len(passes)]:
        drafted, last = len(passes), passes[-1].rows
        sources = [last[seq] for seq in behind]
        pending = launch(behind, drafted, sources, draws_behind(behind, drafted))
        passes.append(DrawnRows({seq: row for row, seq in enumerate(behind)}, pending))
    drafts: dict[Sequence, list[int]] = {seq: [] for seq in seqs}
    for rows, pending in passes:
        tokens = pending.tokens.read()
        for seq, row in rows.items():
            drafts[seq].append(tokens[row])
    return {seq: _until_end(seq, drafted) for seq, drafted in drafts.items()}


def _until_end(seq: Sequence, drafted: list[int]) -> list[int]:
    ends = (at for at, token in enumerate(drafted, 1) if token in seq.end_tokens)
    return drafted[: next(ends, None)]
