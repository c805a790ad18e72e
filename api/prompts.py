"""The prompts in a body: texts, or token ids."""

from api.bodies import CompletionBody
from api.errors import BadRequest
from api.text_requests import Tokens


def needs_text(body: CompletionBody) -> bool:
    """Whether the request needs a tokenizer: not if prompt and answer are token ids."""
    if body.stop or body.bad_words or not body.return_token_ids:
        return True
    given = body.prompt if isinstance(body.prompt, list) else [""]
    return any(isinstance(one, str) for one in given)


def prompts_of(
    given: str | list[str | int | list[int]] | None, param: str
) -> list[str | Tokens]:
    """One prompt or many, each a text or token ids; `param` is the field they are in."""
    if given is None:
        raise BadRequest(f"{param} is missing", param)
    if given == []:
        raise BadRequest(f"{param} must not be empty", param)
    if isinstance(given, str):
        return [given]
    prompts = [tuple(part) if isinstance(part, list) else part for part in given]
    tokens = tuple(part for part in prompts if isinstance(part, int))
    if not tokens:
        return [part for part in prompts if not isinstance(part, int)]
    if len(tokens) < len(prompts):
        raise BadRequest(f"{param} mixes token ids with texts", param)
    return [tokens]
