"""How many bytes a node's answer to a leg may have at most. Pure.

Every number is several times what nodes write, so that only broken ones get there.
"""

from collections.abc import Sequence

from engine.request import PoolingRequest, Request

LEAST_LIMIT = 16 << 20  # whatever was asked for
TOKEN_BYTES = 256  # of an answer: its number and its text, escaped
PROMPT_TOKEN_BYTES = 64  # its number, and its part of a ticket's list of blocks
SCORE_BYTES = 512  # one token with its log-probability, rank and text
LARGEST_VOCABULARY = 1 << 19
VECTOR_BYTES = 128 << 10  # 16,384 numbers of float32 in base64, and half as much again


def longest_answer(request: Request) -> int:
    """The limit for this request's answer, whether it comes in one piece or as an event."""
    sampling = request.sampling
    missing = sampling.max_tokens - len(request.generated)
    answer = TOKEN_BYTES + SCORE_BYTES * _scores(sampling.logprobs)
    prompt = PROMPT_TOKEN_BYTES + SCORE_BYTES * _scores(sampling.prompt_logprobs)
    return LEAST_LIMIT + missing * answer + len(request.tokens) * prompt


def longest_vectors(requests: Sequence[PoolingRequest]) -> int:
    """The limit for the answer to these prompts: a vector for each, or for each token."""
    rows = sum(len(one.prompt) if one.task.startswith("token_") else 1 for one in requests)
    return LEAST_LIMIT + rows * VECTOR_BYTES


def _scores(asked: int | None) -> int:
    """How many tokens a place has scores of: those asked for, and its own."""
    if asked is None:
        return 0
    return asked + 1 if asked >= 0 else LARGEST_VOCABULARY
