"""Requests of VllmEngine as the completions that ask for the same."""

import msgspec

from api.body_limits import refuse_crowded
from api.errors import BadRequest
from api.grpc.calls import RequestForm, copy_ids, refuse_unknown, without_zeros
from api.grpc.protos import vllm_engine_pb2 as pb
from api.wire import UNREADABLE, WireError


def completion_of(request: pb.GenerateRequest, context: int | None = None) -> dict[str, object]:
    """See RequestForm."""
    for name in ("mm_inputs", "media_refs", "extra_mm_inputs"):
        if getattr(request, name):
            raise BadRequest(f"{name}: this server reads text only", name)
    if request.kv_transfer_params and not request.kv_transfer_params_json:
        name = "kv_transfer_params"
        raise BadRequest(f"{name}: use kv_transfer_params_json", name)
    asked = request.sampling_params
    refuse_unknown("sampling_params", asked)
    body = without_zeros(
        {
            "request_id": request.request_id,
            "kv_transfer_params": _params(request),
            "n": asked.n,
            "top_p": asked.top_p,
            "top_k": asked.top_k,
            "min_p": asked.min_p,
            "frequency_penalty": asked.frequency_penalty,
            "presence_penalty": asked.presence_penalty,
            "repetition_penalty": asked.repetition_penalty,
            "min_tokens": asked.min_tokens,
            "stop": list(asked.stop),
            "stop_token_ids": list(asked.stop_token_ids),
            "ignore_eos": asked.ignore_eos,
            "include_stop_str_in_output": asked.include_stop_str_in_output,
            "logit_bias": {str(token): bias for token, bias in asked.logit_bias.items()},
            "structured_outputs": _constraint(asked),
        }
    )
    body["skip_special_tokens"] = asked.skip_special_tokens
    body["return_token_ids"] = True  # and no text: no tokenizer is needed
    for name in (
        *("temperature", "max_tokens", "logprobs", "prompt_logprobs", "seed"),
        "truncate_prompt_tokens",
    ):
        if asked.HasField(name):
            body[name] = getattr(asked, name)
    if not request.HasField("tokenized"):
        return {**body, "prompt": request.text}
    truncates = asked.HasField("truncate_prompt_tokens")
    ids = copy_ids(request.tokenized.input_ids, context, truncates=truncates)
    return {**body, "prompt": ids}


def _params(request: pb.GenerateRequest) -> dict[str, object] | None:
    if not request.kv_transfer_params_json:
        return None
    data, name = request.kv_transfer_params_json.encode(), "kv_transfer_params_json"
    try:
        refuse_crowded(data, f"{name} has")
        read: dict[str, object] = msgspec.json.decode(data, type=dict[str, object])
    except WireError as error:
        raise BadRequest(str(error), name) from error
    except UNREADABLE as error:
        raise BadRequest(f"{name} is no JSON object: {error}", name) from error
    return read


def _kv_named_by(request: pb.GenerateRequest) -> dict[str, object]:
    """Of the body of a request that has none: what names KV."""
    named = {"request_id": request.request_id, "n": request.sampling_params.n}
    try:
        return {**named, "kv_transfer_params": _params(request)}
    except BadRequest:
        return {}


def _constraint(asked: pb.SamplingParams) -> dict[str, object] | None:
    kind = asked.WhichOneof("constraint")
    if kind is None:
        return None
    if kind == "choice":
        return {"choice": list(asked.choice.choices)}
    return {"json" if kind == "json_schema" else kind: getattr(asked, kind)}


FORM: RequestForm[pb.GenerateRequest] = RequestForm(
    lambda one: one.request_id, completion_of, _kv_named_by
)
