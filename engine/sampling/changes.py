"""Changes to rows of logits as flat lists of numbers, to be sent to a device."""

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from engine.attention.plan import LogitChanges
from engine.sampling.logits_processor import (
    NONE,
    ProcessedRow,
    bitmask_for,
    catch_up,
    masked_rows,
)
from engine.sampling.penalties import Counts, Ids

NO_VALUES: Counts = np.empty(0, np.float32)


def changes_of(shaped: Seq[ProcessedRow], vocabulary: int) -> LogitChanges | None:
    """The changes to the rows, given the tokens so far; None if there are no rows.

    Processors first catch up with their sequences. A grammar that cannot continue sets its
    sequence's `failure`.
    """
    if not shaped:
        return None
    catch_up(shaped)
    masked = masked_rows(shaped)
    bits = bitmask_for(masked, vocabulary).numpy()
    return LogitChanges(np.array([one.row for one in masked], np.int32), bits, *_lists(shaped))


def _lists(
    shaped: Seq[ProcessedRow],
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
    """For each row that has any: its biases and bans, then the tokens with penalties."""
    headers, factors = list[tuple[int, ...]](), list[tuple[float, ...]]()
    tokens, values, end = [NONE], [NO_VALUES], 0
    for one in shaped:
        seen, wish = one.processor.token_counts, one.seq.request.sampling
        ids, bias = _biases(one)
        penalised, counts = (
            (NONE, NO_VALUES) if seen is None else seen.with_drafted(one.drafted)
        )
        start, middle = end, end + len(ids)
        end = middle + len(penalised)
        if start < end or seen is not None:  # the device may know a token that we do not
            tokens += ids, penalised
            values += bias, counts
            headers.append((one.row, start, middle, end))
            factors.append(
                (wish.repetition_penalty, wish.frequency_penalty, wish.presence_penalty)
            )
    return (
        np.array(headers, np.int32),
        np.array(factors, np.float32),
        np.concatenate(tokens).astype(np.int32),
        np.concatenate(values),
    )


def _biases(one: ProcessedRow) -> tuple[Ids, Counts]:
    """Biases, and bans as biases of minus infinity, of distinct tokens."""
    biases = one.processor.biases_after(one.seq, one.drafted)
    banned = one.processor.banned(one.seq, one.drafted)
    if not len(banned):
        return biases.ids, biases.values
    others = ~np.isin(biases.ids, banned)
    bans = np.full(len(banned), -np.inf, np.float32)
    return (
        np.concatenate([biases.ids[others], banned]),
        np.concatenate([biases.values[others], bans]),
    )
