"""What answers may have in bytes: several times what nodes write for what was asked."""

import pytest

from api.generated import encode_event
from api.generator import PromptEvent
from engine.request import Logprob, PoolingRequest, PoolingTask, Request, RequestId, Sampling
from proxy.nodes.answer_size import (
    LARGEST_VOCABULARY,
    LEAST_LIMIT,
    PROMPT_TOKEN_BYTES,
    SCORE_BYTES,
    TOKEN_BYTES,
    VECTOR_BYTES,
    longest_answer,
    longest_vectors,
)

PROMPT = (1, 2, 3)
PLAIN = LEAST_LIMIT + 5 * TOKEN_BYTES + 3 * PROMPT_TOKEN_BYTES


@pytest.mark.parametrize(
    ("sampling", "more"),
    [
        (Sampling(5), 0),
        (Sampling(5, logprobs=0), 5 * SCORE_BYTES),
        (Sampling(5, logprobs=4), 25 * SCORE_BYTES),
        (Sampling(5, prompt_logprobs=1), 6 * SCORE_BYTES),
        (Sampling(5, logprobs=-1), 5 * SCORE_BYTES * LARGEST_VOCABULARY),
    ],
)
def test_the_limit_grows_with_what_was_asked_for(sampling: Sampling, more: int) -> None:
    request = Request(RequestId("r"), PROMPT, sampling)
    assert longest_answer(request) == PLAIN + more


def test_a_long_prompt_s_scores_are_no_broken_answer() -> None:
    """They come as one event, of 27 MiB for 20,000 tokens: more than the least limit."""
    prompt, tokens = (7,) * 100, range(10**5, 10**5 + 21)
    place = tuple(Logprob(token, -12.345678901234, token) for token in tokens)
    request = Request(RequestId("r"), prompt, Sampling(1, prompt_logprobs=20))
    event = PromptEvent(0, (place,) * len(prompt))
    frame = encode_event(request.request_id, event)
    assert len(frame) < longest_answer(request) - LEAST_LIMIT


def test_tokens_that_were_generated_are_part_of_the_prompt() -> None:
    begun = Request(RequestId("r"), PROMPT, Sampling(5), generated=(7, 8))
    assert longest_answer(begun) == PLAIN + 2 * (PROMPT_TOKEN_BYTES - TOKEN_BYTES)


@pytest.mark.parametrize(("task", "rows"), [("embed", 2), ("token_embed", 5)])
def test_the_limit_of_vectors_grows_with_how_many_come(task: PoolingTask, rows: int) -> None:
    asked = [PoolingRequest(RequestId("r"), prompt, task) for prompt in (PROMPT, (4, 5))]
    assert longest_vectors(asked) == LEAST_LIMIT + rows * VECTOR_BYTES
