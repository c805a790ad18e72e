"""What rows of logits ask for, as the lists of numbers that a device is sent."""

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from engine.attention.plan import LogitChanges
from engine.sampling.penalties import Counts, Ids
from engine.sampling.shaping import NONE, ShapedRow, bits_for, catch_up, is_masked

NO_VALUES: Counts = np.empty(0, np.float32)


def changes_of(shaped: Seq[ShapedRow], vocabulary: int) -> LogitChanges | None:
    """By what came up to now, which all take in; grammars may fail by it. None for no rows."""
    if not shaped:
        return None
    catch_up(shaped)
    masked = is_masked(shaped)
    bits = bits_for(masked, vocabulary).numpy()
    return LogitChanges(np.array([one.row for one in masked], np.int32), bits, *_lists(shaped))


def _lists(
    shaped: Seq[ShapedRow],
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
    """Of each row that has any: its biases and bans, then what is to be penalised."""
    headers, factors = list[tuple[int, ...]](), list[tuple[float, ...]]()
    tokens, values, end = [NONE], [NO_VALUES], 0
    for one in shaped:
        seen, wish = one.shaping.seen, one.seq.request.sampling
        ids, bias = _biases(one)
        penalised, counts = (NONE, NO_VALUES) if seen is None else seen.behind(one.drafted)
        start, middle = end, end + len(ids)
        end = middle + len(penalised)
        if start < end or seen is not None:  # a device may know of a token where we know none
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


def _biases(one: ShapedRow) -> tuple[Ids, Counts]:
    """Bans are biases of minus infinity; no token is there twice."""
    biases = one.shaping.biases_behind(one.seq, one.drafted)
    banned = one.shaping.banned(one.seq, one.drafted)
    if not len(banned):
        return biases.ids, biases.values
    others = ~np.isin(biases.ids, banned)
    bans = np.full(len(banned), -np.inf, np.float32)
    return (
        np.concatenate([biases.ids[others], banned]),
        np.concatenate([biases.values[others], bans]),
    )
