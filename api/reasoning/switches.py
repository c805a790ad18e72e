"""What clients say with one word, and templates ask for by another: whether a model thinks."""

import re
from collections.abc import Mapping
from functools import lru_cache

from api.tools.dialects.known import KNOWN_TEMPLATES, template_text

SWITCHES = ("enable_thinking", "thinking")
"""What templates call the variable with which a client says whether the model is to think."""
USUAL = SWITCHES[0]
_TAGS = re.compile(r"\{[{%](.*?)[}%]\}", re.DOTALL)
_STRINGS = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)


def switched(
    variables: Mapping[str, object], template: object, *, on: bool | None
) -> dict[str, object]:
    """The variables that a client gives, and the switch under each name that the template has
    for it and the client does not give. `on` is what the client says otherwise, if it does.
    """
    given = [value for name in SWITCHES if isinstance(value := variables.get(name), bool)]
    wish = given[0] if given else on
    if wish is None:
        return dict(variables)
    asked = {*_asked(template_text(template)), *(() if on is None else (USUAL,))}
    return {**{name: wish for name in SWITCHES if name in asked}, **variables}


@lru_cache(KNOWN_TEMPLATES)
def _asked(template: str) -> frozenset[str]:
    """The switches that a template has. A member of a message, or a word, is none."""
    code = " ".join(_STRINGS.sub("''", tag) for tag in _TAGS.findall(template))
    return frozenset(one for one in SWITCHES if re.search(rf"(?<![\w.]){one}(?!\w)", code))
