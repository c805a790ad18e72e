"""What rows of logits ask for, as the lists of numbers that a device is sent."""

from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from engine.attention.plan import LogitChanges
from engine.sampling.shaping import (
    ShapedRow,
    bits_for,
    catch_up,
    is_masked,
    penalties_of,
)


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
    penalties = {one.row: one for one in penalties_of(shaped)}
    headers, factors = list[tuple[int, ...]](), list[tuple[float, ...]]()
    tokens, values, end = [np.empty(0, np.int32)], [np.empty(0, np.float32)], 0
    for one in shaped:
        ids, bias = _biases(one)
        start, middle = end, end + len(ids)
        tokens.append(ids)
        values.append(bias)
        if (penalty := penalties.get(one.row)) is not None:
            tokens.append(penalty.ids.astype(np.int32))
            values.append(penalty.counts)
        end = middle + (0 if penalty is None else len(penalty.ids))
        if start == end:
            continue
        wish = one.seq.request.sampling
        headers.append((one.row, start, middle, end))
        factors.append((wish.repetition_penalty, wish.frequency_penalty, wish.presence_penalty))
    return (
        np.array(headers, np.int32),
        np.array(factors, np.float32),
        np.concatenate(tokens),
        np.concatenate(values),
    )


def _biases(one: ShapedRow) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Bans are biases of minus infinity; no token is there twice."""
    biases = one.shaping.biases_behind(one.seq, one.drafted)
    ids, bias = biases.ids, biases.values
    banned = one.shaping.banned(one.seq, one.drafted)
    if len(banned) and len(ids):
        others = ~np.isin(ids, banned)
        ids, bias = ids[others], bias[others]
    everything = np.concatenate([ids, banned]).astype(np.int32)
    return everything, np.concatenate([bias, np.full(len(banned), -np.inf, np.float32)])
