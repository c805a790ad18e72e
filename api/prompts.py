"""The prompts in a body: texts, or token ids."""

from typing import cast

from api.bodies import CompletionBody
from api.errors import BadRequest
from api.text_requests import Tokens


def needs_text(body: CompletionBody) -> bool:
    """Whether the request needs a tokenizer: not if prompt and answer are token ids."""
    if body.stop or body.bad_words or not body.return_token_ids:
        return True
    return not isinstance(body.prompt, list) or str in set(map(type, body.prompt))


def prompts_of(
    given: str | list[str | int | list[int]] | None, param: str, most: int
) -> list[str | Tokens]:
    """One prompt or many, up to `most`, each a text or token ids; `param` is the field they are
    in. Raises BadRequest.
    """
    if given is None:
        raise BadRequest(f"{param} is missing", param)
    if given == []:
        raise BadRequest(f"{param} must not be empty", param)
    if isinstance(given, str):
        return [given]
    if len(given) > most and not isinstance(given[0], int):
        raise BadRequest(f"more than {most} {param}s in one request", param)
    if int not in (kinds := set(map(type, given))):
        return [tuple(one) if isinstance(one, list) else str(one) for one in given]
    if len(kinds) > 1:
        raise BadRequest(f"{param} mixes token ids with texts", param)
    return [cast("Tokens", tuple(given))]
