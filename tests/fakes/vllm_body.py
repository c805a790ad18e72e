"""What bodies nodes of vLLM take: what is not exactly in the contract is refused."""

from collections.abc import Mapping
from typing import Any

SAMPLING = {
    *("temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "max_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "stop_token_ids"),
    *("ignore_eos", "logit_bias", "allowed_token_ids", "logprobs", "prompt_logprobs"),
    "structured_outputs",
}
SHARED = {"stream", "cache_salt", "priority", "kv_transfer_params"}
GENERATE_FIELDS = {"token_ids", "sampling_params", "request_id", *SHARED}
COMPLETION_FIELDS = {
    *("prompt", "model", "return_token_ids", "return_tokens_as_token_ids"),
    *("add_special_tokens", "skip_special_tokens"),
    *SAMPLING,
    *SHARED,
}


class Refused(Exception):
    """What is not in the contract."""


def read(
    body: Mapping[str, Any], *, textual: bool
) -> tuple[tuple[int, ...], Mapping[str, Any]]:
    """The prompt, and what is said of sampling; raises Refused."""
    sampling = body if textual else body["sampling_params"]
    unknown = set(body) - (COMPLETION_FIELDS if textual else GENERATE_FIELDS)
    if not textual:
        unknown |= set(sampling) - SAMPLING
    if unknown:
        raise Refused(f"unknown fields {sorted(unknown)}")
    if textual and not (body["return_token_ids"] and body["return_tokens_as_token_ids"]):
        raise Refused("nothing but text is wanted")
    if not -(2**63) <= sampling["seed"] < 2**63:
        raise Refused("seed")
    if textual and body["stream"] and "prompt_logprobs" in body:
        raise Refused("prompt_logprobs are not available when stream=True")
    return tuple(body["prompt" if textual else "token_ids"]), sampling
