"""From a body's fields to `Sampling`, once the prompt's length is known."""

from dataclasses import dataclass

from api.bodies import TextBody
from api.errors import BadRequest, ContextTooLong
from api.seeds import chosen_seed
from api.stopping import StopStrings
from engine.request import Sampling

MOST_STOP_CHARACTERS = 16_384
MAX_TOKENS_UNKNOWN = 1_024  # where a client names none, while nobody knows the context


@dataclass(frozen=True, slots=True)
class Room:
    """How many tokens there is room for; `context` is None while nobody knows."""

    context: int | None
    prompt: int
    default: int | None  # where the client names no limit; None: all there is

    @property
    def left(self) -> int | None:
        """Tokens for the answer; raises ContextTooLong where the prompt leaves none."""
        if self.context is None:
            return None
        if self.prompt >= self.context:
            raise ContextTooLong(
                f"This model's maximum context length is {self.context} tokens, "
                f"and the prompt alone has {self.prompt}."
            )
        return self.context - self.prompt

    def max_tokens(self, body: TextBody) -> int:
        """The answer's limit; raises ContextTooLong where the client asked for too much."""
        left = self.left
        asked = body.max_completion_tokens or body.max_tokens
        if asked is None:
            default = self.default or left or MAX_TOKENS_UNKNOWN
            return default if left is None else min(default, left)
        if left is not None and asked > left:
            raise ContextTooLong(
                f"This model's maximum context length is {self.context} tokens, and "
                f"{self.prompt + asked} were requested: {self.prompt} in the prompt, "
                f"{asked} in the answer.",
                "max_completion_tokens" if body.max_completion_tokens else "max_tokens",
            )
        return asked


def sampling_of(body: TextBody, room: Room, outer_id: str, *, whole: bool = True) -> Sampling:
    """The sampling of the first of n choices; null means OpenAI's default.

    The leg of a request (not `whole`) may have its `max_tokens` clamped under its
    `min_tokens` by whoever cut the request in two.
    """
    max_tokens, min_tokens = room.max_tokens(body), body.min_tokens or 0
    if min_tokens > max_tokens and whole:
        raise BadRequest(f"min_tokens is more than max_tokens={max_tokens}", "min_tokens")
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(body.top_k or 0, 0),
        min_p=body.min_p or 0.0,
        seed=_seed(body.seed, outer_id),
        stop_token_ids=body.stop_token_ids or (),
        ignore_eos=bool(body.ignore_eos),
    )


def stops_of(body: TextBody) -> StopStrings:
    """The stop strings; raises BadRequest."""
    strings = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if not all(strings):
        raise BadRequest("stop must not contain an empty string", "stop")
    if sum(map(len, strings)) > MOST_STOP_CHARACTERS:
        raise BadRequest(f"stop has more than {MOST_STOP_CHARACTERS} characters", "stop")
    return StopStrings.of(strings)


def _seed(given: int | None, outer_id: str) -> int:
    try:
        return chosen_seed(given, outer_id)
    except ValueError as error:
        raise BadRequest(str(error), "seed") from error
