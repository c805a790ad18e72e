"""`sampling_params` of the node call: vLLM's names, to and from Sampling. Pure.

What differs from vLLM: `bad_words` are lists of token ids, as a node need not know text, and
`sample_index` tells the choices of a request apart. A grammar is vLLM's `structured_outputs`.
"""

from collections.abc import Mapping

import msgspec

from api.body_limits import MOST_ALLOWED, MOST_BIASES, MOST_STOP_IDS, MOST_STRINGS
from api.fields import NODE_SAMPLING, refuse_unsupported
from api.grammars import read_structured, structured_of
from api.seeds import default_seed, resolve_seed
from api.wire import WireError, convert
from engine.request import LARGEST_TOKEN, Bias, RequestId, Sampling, TokenId

DEFAULT_MAX_TOKENS = 16
MOST = {
    "logit_bias": MOST_BIASES,
    "allowed_token_ids": MOST_ALLOWED,
    "stop_token_ids": MOST_STOP_IDS,
    "bad_words": 2 * MOST_STRINGS,  # spellings
}
"""Lengths: what is longer would hold up the event loop."""
Biases = dict[TokenId, Bias]


def encode_sampling(sampling: Sampling, done: int) -> dict[str, object]:
    """The parameters for the rest of the answer after `done` tokens."""
    said: dict[str, object] = msgspec.to_builtins(sampling)
    del said["grammar"]
    return {
        **said,
        "max_tokens": sampling.max_tokens - done,
        "logit_bias": dict(sampling.logit_bias),
        "structured_outputs": structured_of(sampling.grammar),
    }


def decode_sampling(given: Mapping[str, object], done: int, request_id: RequestId) -> Sampling:
    """The reverse of `encode_sampling`; raises UnsupportedField and WireError."""
    refuse_unsupported(given, NODE_SAMPLING)
    known = {key: value for key, value in given.items() if value is not None}
    known.pop("grammar", None)
    _check_lengths(known)
    if known.get("top_k") == -1:  # -1 also means all
        known["top_k"] = 0
    if (bias := known.get("logit_bias")) is not None:
        known["logit_bias"] = tuple(convert(bias, Biases, "logit_bias", strict=False).items())
    if (seed := known.get("seed")) is not None:
        known["seed"] = _seed(convert(seed, int, "seed", strict=False), request_id)
    if (asked := known.pop("structured_outputs", None)) is not None:
        known["grammar"] = read_structured(asked)
    defaults = {"seed": default_seed(request_id), "max_tokens": DEFAULT_MAX_TOKENS}
    sampling = checked(convert({**defaults, **known}, Sampling, strict=False))
    most = min(sampling.max_tokens + done, LARGEST_TOKEN)
    return msgspec.structs.replace(sampling, max_tokens=most)


def _check_lengths(given: Mapping[str, object]) -> None:
    for name, most in MOST.items():
        asked = given.get(name)
        if isinstance(asked, list | dict) and len(asked) > most:
            raise WireError(f"{name} has more than {most} entries", name)


def checked(sampling: Sampling) -> Sampling:
    """Check what the types do not express; raises WireError."""
    if sampling.allowed_token_ids == ():
        raise WireError("allowed_token_ids must not be empty", "allowed_token_ids")
    if not all(sampling.bad_words):
        raise WireError("bad_words must not be empty", "bad_words")
    if sampling.grammar_behind is not None and sampling.grammar is None:
        raise WireError("grammar_behind needs structured_outputs", "grammar_behind")
    return sampling


def _seed(given: int, request_id: RequestId) -> int:
    try:
        return resolve_seed(given, request_id)
    except ValueError as error:
        raise WireError(str(error), "seed") from error
