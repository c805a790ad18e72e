"""Request bodies for vLLM nodes, for either of their endpoints. Pure.

`/inference/v1/generate` takes and returns token ids. It is off by default in vLLM; then
`/v1/completions` is called with a prompt of token ids and `return_token_ids`. A prefill leg is
not streamed: only a complete answer is sure to have `kv_transfer_params`.

UnsupportedByVllm   the request has a parameter that vLLM does not have; `param` names it
"""

from collections.abc import Mapping

import msgspec

from api.node_sampling import encode_sampling
from api.wire import WireError
from engine.request import Request, Sampling
from proxy.foreign.structural_tags import UnsupportedTag, without_extensions

GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"
MOST_SEED = 2**63 - 1  # vLLM's seed is a signed number, and -1 means none
# 2^64 over the golden ratio, which spreads neighbouring numbers far apart
STEP = 0x9E3779B97F4A7C15
OURS_ONLY = ("sample_index", "bad_words", "grammar_behind")

Params = Mapping[str, object]
"""The value of `kv_transfer_params`."""


class UnsupportedByVllm(WireError):
    """The request has a parameter that vLLM does not have."""


def generate_body(request: Request, outer_id: str, params: Params | None, hold: bool) -> bytes:
    """The body for `/inference/v1/generate`."""
    said = {
        "request_id": outer_id,
        "token_ids": request.tokens,
        "sampling_params": sampling_params(request, hold),
        **_shared(request, params, stream=not hold),
    }
    return msgspec.json.encode(said)


def completion_body(
    request: Request, model: str | None, params: Params | None, hold: bool
) -> bytes:
    """The body for `/v1/completions`, whose streams have no log-probabilities of the prompt."""
    scored = request.sampling.prompt_logprobs is not None
    said = {
        **({"model": model} if model else {}),
        "prompt": request.tokens,
        **sampling_params(request, hold),
        "add_special_tokens": False,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **_shared(request, params, stream=not (hold or scored)),
    }
    return msgspec.json.encode(said)


def sampling_params(request: Request, hold: bool) -> dict[str, object]:
    """Sampling parameters for the tokens still missing; one token for a prefill leg.

    vLLM counts `min_tokens` from where a retry begins. Each choice of a request is a separate
    request there, with its own seed. Raises UnsupportedByVllm.
    """
    sampling, done = request.sampling, len(request.generated)
    if sampling.bad_words:
        raise UnsupportedByVllm("bad_words cannot be told to a node of vLLM", "bad_words")
    limit = done + 1 if hold else sampling.max_tokens
    least = max(0, min(sampling.min_tokens, limit) - done)
    asked = msgspec.structs.replace(
        sampling, max_tokens=limit, min_tokens=least, seed=_seed(sampling)
    )
    said = encode_sampling(asked, done) | _structured_outputs(sampling)
    return {
        key: value
        for key, value in said.items()
        if key not in OURS_ONLY and value is not None and value != {}
    }


def _structured_outputs(sampling: Sampling) -> dict[str, object]:
    """A structural tag without our extensions; empty for any other grammar."""
    if sampling.grammar is None or sampling.grammar.kind != "structural_tag":
        return {}
    try:
        told = without_extensions(sampling.grammar.source)
    except UnsupportedTag as unknown:
        raise UnsupportedByVllm(str(unknown), "tools") from None
    return {"structured_outputs": {"structural_tag": told}}


def _seed(sampling: Sampling) -> int:
    return (sampling.seed + sampling.sample_index * STEP) & MOST_SEED


def _shared(request: Request, params: Params | None, *, stream: bool) -> dict[str, object]:
    """Fields that both endpoints have; defaults are omitted. Raises UnsupportedByVllm."""
    if request.adapter is not None:  # no adapter of such a node is known here
        raise UnsupportedByVllm("an adapter cannot be told to a node of vLLM", "model")
    said: dict[str, object] = {"stream": stream}
    if request.cache_salt:
        said["cache_salt"] = request.cache_salt
    if request.priority:
        said["priority"] = request.priority
    if params is not None:
        said["kv_transfer_params"] = params
    return said
