"""Log-probabilities of prompts: each chunk scores what it computes, whatever runs beside it."""

import torch

from engine.api import Scored
from engine.request import Request, RequestId, Sampling
from engine.sampling.logprobs import logprobs_of, top_logprobs
from engine.sampling.prompt_logprobs import ROWS_AT_ONCE, record_prompt_logprobs
from engine.scheduling.chunk import Chunk
from engine.scheduling.sequence import Sequence
from tests.fakes.sampling import sequence

VOCABULARY = 30
LENGTH = 3 * ROWS_AT_ONCE + 7


def test_drafts_of_a_sequence_before_it_are_rows_that_are_stepped_over() -> None:
    """And a batch scores many rows in several parts, each of a bounded number."""
    generator = torch.Generator().manual_seed(1)
    prompt = tuple(torch.randint(0, VOCABULARY, (LENGTH,), generator=generator).tolist())
    hidden = torch.randn(LENGTH, VOCABULARY, generator=generator)
    asked = Sampling(prompt_logprobs=2)
    seq = Sequence(Request(RequestId("one"), prompt, asked))
    parts, found = list[int](), list[Scored]()

    def logits_of(rows: torch.Tensor) -> torch.Tensor:
        parts.append(len(rows))
        return rows.clone()

    for start, stop in ((0, 2), (2, LENGTH - 3), (LENGTH - 3, LENGTH)):
        beside = Chunk(sequence(Sampling(), answer=(4,)), 2, 1, (5, 6))
        batch = [beside, Chunk(seq, start, stop - start)]
        rows = torch.cat([torch.full((beside.size, VOCABULARY), torch.nan), hidden[start:stop]])
        found += record_prompt_logprobs(batch, rows, logits_of)
    (scored,) = found
    want = top_logprobs(logprobs_of(hidden[:-1]), prompt[1:], 2)
    assert scored.request_id == "one"
    assert scored.logprobs == tuple(want)
    assert max(parts) == ROWS_AT_ONCE
    assert seq.prompt_logprobs is None


def test_a_preempted_prompt_is_scored_once_and_told_of_when_the_last_score_is_there() -> None:
    """Behind its last token nothing of the prompt is left to score."""
    prompt, hidden = tuple(range(9)), torch.randn(9, VOCABULARY)
    seq = Sequence(Request(RequestId("one"), prompt, Sampling(prompt_logprobs=0)))
    found = [
        list(
            record_prompt_logprobs(
                [Chunk(seq, start, stop - start)], hidden[start:stop], torch.clone
            )
        )
        for start, stop in ((0, 3), (3, 6), (0, 4), (4, 7), (7, 8), (8, 9))
    ]
    want = tuple(top_logprobs(logprobs_of(hidden[:-1]), prompt[1:], 0))
    assert found == [[], [], [], [], [Scored(RequestId("one"), want)], []]
