"""Refuses sampling settings that do not fit the model's vocabulary. Torch-free."""

from collections.abc import Iterable, Iterator

from engine.errors import UnknownToken, UnusableSampling
from engine.request import Request, Sampling

MOST_SCORES = 400_000  # log-probabilities of one prompt: what one event can carry


def check_sampling(request: Request, vocabulary: int, ends: frozenset[int]) -> None:
    """Raises UnknownToken or UnusableSampling, naming the field; `ends` end the answer."""
    name, sampling = request.request_id, request.sampling
    for field, tokens in _named(sampling):
        if odd := sorted({one for one in tokens if not 0 <= one < vocabulary}):
            raise UnknownToken(f"{name}: {field}: {odd} not in 0..{vocabulary - 1}", field)
    if not all(sampling.bad_words):
        raise UnusableSampling(f"{name}: bad_words: one has no tokens", "bad_words")
    _check_scores(request, vocabulary)
    never = {word[0] for word in sampling.bad_words if len(word) == 1}
    if sampling.min_tokens > len(request.generated):
        never |= {one for one in ends if one < vocabulary}
    if sampling.allowed_token_ids is None:
        if len(never) == vocabulary:
            field = "bad_words" if sampling.bad_words else "min_tokens"
            raise UnusableSampling(f"{name}: {field}: nothing is left to say", field)
    elif never.issuperset(sampling.allowed_token_ids):
        nothing = f"{name}: allowed_token_ids: nothing of it may be said"
        raise UnusableSampling(nothing, "allowed_token_ids")


def _check_scores(request: Request, vocabulary: int) -> None:
    asked = request.sampling.prompt_logprobs
    if asked is None:
        return
    each = 1 + (vocabulary if asked < 0 else min(asked, vocabulary))
    if (scores := len(request.prompt) * each) > MOST_SCORES:
        field = "prompt_logprobs"
        told = f"{request.request_id}: {field}: {scores} for this prompt, over {MOST_SCORES}"
        raise UnusableSampling(told, field)


def _named(sampling: Sampling) -> Iterator[tuple[str, Iterable[int]]]:
    """The fields whose tokens must be in the vocabulary; stop tokens need not be."""
    yield "logit_bias", [token for token, _ in sampling.logit_bias]
    yield "allowed_token_ids", sampling.allowed_token_ids or ()
    if (marks := sampling.grammar_behind) is not None:
        yield "grammar_behind", [token for one in marks.closes + marks.opens for token in one]
    yield "bad_words", [token for word in sampling.bad_words for token in word]
