"""From the fields of a body to the engine's `Sampling`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from api.bodies import ChatBody, CompletionBody, TextBody
from api.errors import BadRequest, ContextTooLong
from api.grammars import GUIDED, read_format, read_guided, read_structured
from api.node_sampling import Biases, checked
from api.seeds import resolve_seed
from api.served import ServedModel
from api.text.stopping import StopStrings
from api.text.tokenizing import TextCodec
from api.tools.schemas import forced_grammar
from api.tools.structured import JSON_KINDS
from api.wire import WireError, convert
from engine.request import Grammar, Sampling

MOST_CHARACTERS = 16_384  # of stop strings, or of bad words
MAX_TOKENS_UNKNOWN = 1_024  # if a client names none and the context is unknown
Words = tuple[tuple[int, ...], ...]
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """How many tokens the context has room for; `context` is None while it is unknown."""

    context: int | None
    prompt: int
    default: int | None  # the limit if the client names none; None: all that is left

    @property
    def remaining(self) -> int | None:
        """Tokens left for the answer; raises ContextTooLong if the prompt leaves none."""
        if self.context is None:
            return None
        if self.prompt >= self.context:
            raise ContextTooLong(
                f"This model's maximum context length is {self.context} tokens, "
                f"and the prompt alone has {self.prompt}.",
                prompt=self.prompt,
                context=self.context,
            )
        return self.context - self.prompt

    def max_tokens(self, body: TextBody) -> int:
        """The answer's limit; raises ContextTooLong if the client asked for too much."""
        left, asked = self.remaining, requested_max_tokens(body)
        if asked is None:
            default = self.default or left or MAX_TOKENS_UNKNOWN
            return default if left is None else min(default, left)
        if left is not None and asked > left:
            if body.clamps_max_tokens:
                return left
            raise ContextTooLong(
                f"This model's maximum context length is {self.context} tokens, and "
                f"{self.prompt + asked} were requested: {self.prompt} in the prompt, "
                f"{asked} in the answer.",
                "max_completion_tokens" if body.max_completion_tokens else "max_tokens",
            )
        return asked


def requested_max_tokens(body: TextBody) -> int | None:
    """The client's limit for its answer; 1 if it wants only an echo: that token is not sent."""
    if body.only_echo:
        return 1
    if body.max_completion_tokens is None and body.max_tokens == 0:
        echo = " without echo" if isinstance(body, CompletionBody) else ""
        raise BadRequest(f"max_tokens must be at least 1{echo}", "max_tokens")
    return body.max_completion_tokens or body.max_tokens


def shared_sampling(body: TextBody, outer_id: str, served: ServedModel) -> Sampling:
    """The sampling that all choices share, still without length limits; raises ApiError."""
    defaults = served.defaults
    try:
        shape = Sampling(
            temperature=_or(body.temperature, defaults.temperature),
            top_p=_or(body.top_p, defaults.top_p),
            top_k=max(_or(body.top_k, defaults.top_k), 0),
            min_p=_or(body.min_p, defaults.min_p),
            presence_penalty=body.presence_penalty or 0.0,
            frequency_penalty=body.frequency_penalty or 0.0,
            repetition_penalty=_or(body.repetition_penalty, defaults.repetition_penalty),
            logit_bias=_biases(body, served),
            allowed_token_ids=body.allowed_token_ids,
            bad_words=_words(body.bad_words or (), served.text),
            logprobs=_ranks(body),
            prompt_logprobs=_prompt_ranks(body),
            grammar=_grammar(body),
            seed=_seed(body.seed, outer_id),
            stop_token_ids=body.stop_token_ids or (),
            ignore_eos=bool(body.ignore_eos),
        )
        _check(body, shape, served)
        return checked(shape)
    except WireError as error:
        raise BadRequest(str(error), error.param) from error


def with_length_limits(
    shape: Sampling, body: TextBody, room: TokenBudget, *, whole: bool = True
) -> Sampling:
    """The sampling of one choice, with its `max_tokens` and `min_tokens`.

    A prefill leg (not `whole`) may have its `max_tokens` clamped below its `min_tokens` by
    the router that split the request.
    """
    max_tokens, min_tokens = room.max_tokens(body), body.min_tokens or 0
    if min_tokens > max_tokens and whole and not body.only_echo:
        raise BadRequest(f"min_tokens is more than max_tokens={max_tokens}", "min_tokens")
    return msgspec.structs.replace(shape, max_tokens=max_tokens, min_tokens=min_tokens)


def stop_strings_of(body: TextBody) -> StopStrings:
    """The stop strings; raises BadRequest."""
    strings = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if not all(strings):
        raise BadRequest("stop must not contain an empty string", "stop")
    if sum(map(len, strings)) > MOST_CHARACTERS:
        raise BadRequest(f"stop has more than {MOST_CHARACTERS} characters", "stop")
    return StopStrings.of(strings)


def _or(given: Number | None, default: Number) -> Number:
    return default if given is None else given


def _seed(given: int | None, outer_id: str) -> int:
    try:
        return resolve_seed(given, outer_id)
    except ValueError as error:
        raise WireError(str(error), "seed") from error


def _biases(body: TextBody, served: ServedModel) -> tuple[tuple[int, float], ...]:
    """The logit biases with integer keys, as JSON's keys are strings."""
    if not body.logit_bias:
        return ()
    if len(body.logit_bias) > served.num_token_ids:
        raise WireError(f"logit_bias has more than {served.num_token_ids} tokens", "logit_bias")
    return tuple(convert(body.logit_bias, Biases, "logit_bias", strict=False).items())


def _words(words: Sequence[str], codec: TextCodec) -> Words:
    """The tokens of each word at the start of a text, and after a space if those differ."""
    if sum(map(len, words)) > MOST_CHARACTERS:
        raise WireError(f"bad_words have more than {MOST_CHARACTERS} characters", "bad_words")
    return tuple(sequence for word in words for sequence in _spellings(word.lstrip(), codec))


def _spellings(word: str, codec: TextCodec) -> Iterator[tuple[int, ...]]:
    if not word:
        raise WireError("bad_words must not contain an empty string", "bad_words")
    bare = codec.encode(word, special_tokens=False)
    spaced = codec.encode(f" {word}", special_tokens=False)
    yield bare
    if spaced[-len(bare) :] != bare:
        yield spaced


def _check(body: TextBody, shape: Sampling, served: ServedModel) -> None:
    """Refuse token ids outside the vocabulary, and too many log-probabilities."""
    for param, tokens in (
        ("logit_bias", [token for token, _ in shape.logit_bias]),
        ("allowed_token_ids", shape.allowed_token_ids or ()),
    ):
        if tokens and max(tokens) >= served.num_token_ids:
            raise WireError(f"{param}: token id {max(tokens)} is out of vocabulary", param)
    most = served.max_logprobs
    for param in ("logprobs", "top_logprobs", "prompt_logprobs"):
        asked = getattr(body, param, None) or 0
        if most >= 0 and not 0 <= asked <= most:
            raise WireError(f"{param}: from 0 to {most} may be asked for here", param)


def _ranks(body: TextBody) -> int | None:
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise WireError("top_logprobs needs logprobs to be true", "top_logprobs")
    return body.num_logprobs


def _prompt_ranks(body: TextBody) -> int | None:
    """The prompt's log-probabilities; with an echo it gets as many as the answer."""
    if body.prompt_logprobs is not None and body.stream:
        raise WireError("prompt_logprobs are not to be had of a stream", "prompt_logprobs")
    if body.prompt_logprobs is None and body.echoes_prompt:
        return body.num_logprobs
    return body.prompt_logprobs


def _grammar(body: TextBody) -> Grammar | None:
    """The grammar that the body asks for, by any of its fields."""
    said = _grammars(body)
    if len(said) > 1:
        raise WireError(f"{' and '.join(said)} exclude each other", list(said)[-1])
    return next(iter(said.values()), None)


def grammar_field(body: TextBody) -> str | None:
    """The field that asks for the grammar."""
    return next(iter(_grammars(body)), None)


def requires_json(body: TextBody) -> bool:
    """Whether `response_format` asks for JSON, which excludes tool calls; raises WireError."""
    form = _format(body)
    return form is not None and form.kind in JSON_KINDS


def _format(body: TextBody) -> Grammar | None:
    return None if body.response_format is None else read_format(body.response_format)


def _grammars(body: TextBody) -> dict[str, Grammar]:
    """The requested grammars, each under the field that asks for it."""
    format_, structured = _format(body), body.structured_outputs
    forced = forced_grammar(body.tool_use) if isinstance(body, ChatBody) else None
    if forced and format_ and format_.kind in JSON_KINDS:
        format_ = None  # it applies to messages; a forced call has none
    found = {
        "response_format": format_,
        "structured_outputs": None if structured is None else read_structured(structured),
        **{
            name: read_guided(name, asked)
            for name in GUIDED
            if (asked := getattr(body, name)) is not None
        },
        "tool_choice": forced,
    }
    return {name: grammar for name, grammar in found.items() if grammar}
