"""POST /inference/v1/generate as clients ask it: token ids in, token ids out. Pure.

For nodes, vLLM's endpoint of that name also carries their legs (generate.py). For a client it
is a completion of a prompt of token ids with other field names, so it is turned into one.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from api.bodies import (
    CompletionBody,
    RequestBody,
    convert,
    read_object,
)
from api.errors import BadRequest
from api.fields import NONE, SAMPLING, UnsupportedField, refuse_unsupported
from api.grammars import GUIDED
from engine.request import TokenId

GENERATE: Mapping[str, tuple[object, ...]] = {
    "content_parts": NONE,
    "ec_transfer_params": NONE,
    "features": NONE,
    "num_generated": (None, 0),
    "output_mode": (None, "tokens"),
}
GENERATE_SAMPLING: Mapping[str, tuple[object, ...]] = {
    **SAMPLING,
    **dict.fromkeys(GUIDED, NONE),
    "response_format": NONE,
    "logprob_token_ids": NONE,
    "grammar_behind": NONE,
    "sample_index": (None, 0),
    "spaces_between_special_tokens": (None, True),
}
HONOURED = (
    *("n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias"),
    *("allowed_token_ids", "bad_words", "logprobs", "prompt_logprobs", "stop"),
    *("stop_token_ids", "ignore_eos", "include_stop_str_in_output", "structured_outputs"),
    *("skip_special_tokens", "truncate_prompt_tokens", "truncation_side"),
)
"""Of `sampling_params`; they mean what fields of /v1/completions by these names do."""


class TokensBody(RequestBody, frozen=True, kw_only=True):
    """POST /inference/v1/generate."""

    token_ids: Annotated[list[TokenId], Meta(min_length=1)]
    sampling_params: dict[str, Any]


def read_tokens(data: bytes) -> CompletionBody:
    """The completion that the body asks for; raises BadRequest for any invalid bytes."""
    body = convert(read_object(data, GENERATE), TokensBody)
    try:
        refuse_unsupported(body.sampling_params, GENERATE_SAMPLING)
    except UnsupportedField as error:
        raise BadRequest(str(error), error.param) from error
    given = body.sampling_params
    known = {name: given[name] for name in HONOURED if name in given}
    said = msgspec.structs.asdict(body)
    del said["token_ids"], said["sampling_params"]
    sampling = convert(known, CompletionBody)
    return replace(sampling, prompt=body.token_ids, return_token_ids=True, **said)
