"""Changes logits in place: token bitmasks, and sparse lists of biases, bans and penalties.

Lists have only the tokens that change, so they cost little: 8 bytes for each token and two
accesses to its logit, while tables over the vocabulary would be read as a whole. The formulas
are those of engine/sampling/penalties.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.floor import Floor

ENTRIES_AT_ONCE, TOKENS_AT_ONCE = 256, 4096
LARGEST_LOGIT = tl.constexpr(1e30)  # as in engine/sampling/penalties.py
HEADER = 4  # integers for each row: see `adjust`


def adjust(
    logits: Tensor,
    headers: Tensor,
    factors: Tensor,
    tokens: Tensor,
    values: Tensor,
    latest: Tensor | None = None,
) -> None:
    """Apply biases and bans, then penalties, to `logits` [.., vocabulary] float32 in place.

    For each of n rows, `headers` [n, 4] int32 has the row, the beginning of its biases in
    `tokens` and `values`, the beginning of its penalties, and their end. A bias of minus
    infinity is a ban; the value of a penalty is the number of times the token occurs in the
    answer. No token may be twice among a row's biases, nor among its penalties. `factors`
    [n, 3] float32: repetition, frequency and presence penalty. `tokens` int32, `values`
    float32. If a row's `latest` [rows], of any integer type, is not negative, its answer has
    that token once more than the list says.
    """
    if len(headers):
        _adjust[(len(headers),)](
            logits, headers, factors, tokens, values, latest, logits.stride(0),
            HEADER=HEADER, ENTRIES=ENTRIES_AT_ONCE, num_warps=4,
        )  # fmt: skip


def apply_bitmasks(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """Set `logits` [.., vocabulary] float32 of `rows` [n] int32 to minus infinity where `bits`
    are 0.

    `bits` [n, words] int32: token t is bit t % 32 of word t // 32. Logits are only written, and
    only those that are banned.
    """
    if len(rows):
        vocabulary = logits.shape[1]
        _ban[(triton.cdiv(vocabulary, TOKENS_AT_ONCE), len(rows))](
            logits, rows, bits, logits.stride(0), bits.stride(0), vocabulary,
            TOKENS=TOKENS_AT_ONCE, num_warps=4,
        )  # fmt: skip


def adjust_twin(
    logits: Tensor,
    headers: Tensor,
    factors: Tensor,
    tokens: Tensor,
    values: Tensor,
    latest: Tensor | None = None,
) -> None:
    """The same in plain torch, row by row."""
    for header, factor in zip(headers.tolist(), factors.tolist(), strict=True):
        row, start, middle, end = header
        of_row, (repetition, frequency, presence) = logits[row], factor
        ids, by = tokens[start:middle].long(), values[start:middle]
        of_row[ids] = torch.where(by == -torch.inf, by, of_row[ids] + by)
        ids, counts = tokens[middle:end].long(), values[middle:end]
        if latest is not None and (token := int(latest[row])) >= 0:
            ids = torch.cat((ids, ids.new_full((int(token not in ids),), token)))
            counts = torch.cat((counts, counts.new_zeros(len(ids) - len(counts))))
            counts = counts + (ids == token)
        found = of_row[ids]
        found = torch.where(found > 0, found / repetition, found * repetition)
        found = found - frequency * counts - presence * (counts > 0)
        of_row[ids] = found.clamp(max=LARGEST_LOGIT.value)


def apply_bitmasks_twin(logits: Tensor, rows: Tensor, bits: Tensor) -> None:
    """The same in plain torch."""
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = (bits.unsqueeze(-1) >> shifts & 1).flatten(1)[:, : logits.shape[1]].bool()
    logits[rows.long()] = logits[rows.long()].masked_fill(~allowed, -torch.inf)


def adjust_floor(rows: int, entries: int) -> Floor:
    """For each entry, it is read, and its logit's sector of 32 bytes is read and written.

    Three penalties are 8 operations.
    """
    return Floor(bytes=rows * 28 + entries * (8 + 64), operations=8 * entries)


def apply_bitmasks_floor(rows: int, vocabulary: int) -> Floor:
    """Bits are read, and all logits written, as if nearly all were banned; no operations."""
    return Floor(bytes=rows * (vocabulary // 8 + 4 * vocabulary))


@triton.jit
def _adjust(
    logits, headers, factors, tokens, values, latest, stride, HEADER: tl.constexpr,
    ENTRIES: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    header = headers + index * HEADER
    number = tl.load(header)
    row = logits + number.to(tl.int64) * stride
    start, middle, end = tl.load(header + 1), tl.load(header + 2), tl.load(header + 3)
    for begin in range(start, middle, ENTRIES):
        at = begin + tl.arange(0, ENTRIES)
        place = row + tl.load(tokens + at, mask=at < middle, other=0)
        by = tl.load(values + at, mask=at < middle, other=0.0)
        logit = tl.load(place, mask=at < middle, other=0.0)
        changed = tl.where(by == float("-inf"), by, logit + by)
        tl.store(place, changed, mask=at < middle)
    tl.debug_barrier()
    factor = factors + index * 3
    repetition, frequency = tl.load(factor), tl.load(factor + 1)
    presence = tl.load(factor + 2)
    fresh, known = -1, tl.zeros((ENTRIES,), tl.int32)
    if latest is not None:
        fresh = tl.load(latest + number).to(tl.int32)
    for begin in range(middle, end, ENTRIES):
        at = begin + tl.arange(0, ENTRIES)
        token = tl.load(tokens + at, mask=at < end, other=0)
        again = ((token == fresh) & (at < end)).to(tl.int32)
        known += again
        count = tl.load(values + at, mask=at < end, other=0.0) + again
        logit = tl.load(row + token, mask=at < end, other=0.0)
        logit = _penalised(logit, count, repetition, frequency, presence)
        tl.store(row + token, logit, mask=at < end)
    if (fresh >= 0) & (tl.sum(known, 0) == 0):
        logit = _penalised(tl.load(row + fresh), 1.0, repetition, frequency, presence)
        tl.store(row + fresh, logit)


@triton.jit
def _penalised(logit, count, repetition, frequency, presence):
    logit = tl.where(logit > 0, tl.div_rn(logit, repetition), logit * repetition)
    logit = logit - frequency * count
    logit = logit - tl.where(count > 0, presence, 0.0)
    return tl.where(logit > LARGEST_LOGIT, LARGEST_LOGIT, logit)


@triton.jit
def _ban(logits, rows, bits, stride, bits_stride, vocabulary, TOKENS: tl.constexpr):
    tile, index = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = tl.load(rows + index).to(tl.int64)
    token = tile * TOKENS + tl.arange(0, TOKENS)
    inside = token < vocabulary
    words = tl.load(bits + index * bits_stride + token // 32, mask=inside, other=-1)
    banned = (words >> token % 32 & 1) == 0
    nothing = tl.full((TOKENS,), float("-inf"), tl.float32)
    tl.store(logits + row * stride + token, nothing, mask=inside & banned)
