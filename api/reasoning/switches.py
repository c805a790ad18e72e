"""The template variables that turn a model's thinking on and off."""

import re
from collections.abc import Mapping
from functools import lru_cache

from api.tools.dialects.known import KNOWN_TEMPLATES, template_text

SWITCHES = ("enable_thinking", "thinking")
"""The names of the variable in chat templates."""
USUAL = SWITCHES[0]
_TAGS = re.compile(r"\{[{%](.*?)[}%]\}", re.DOTALL)
_STRINGS = re.compile(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)


def with_thinking_switch(
    variables: Mapping[str, object], template: object, *, on: bool | None
) -> dict[str, object]:
    """The client's template variables, with the thinking switch added under each name that the
    template uses. `on` is the value that the request's other fields give, if any.
    """
    given = [value for name in SWITCHES if isinstance(value := variables.get(name), bool)]
    wish = given[0] if given else on
    if wish is None:
        return dict(variables)
    asked = {*_switches_of(template_text(template)), *(() if on is None else (USUAL,))}
    return {**{name: wish for name in SWITCHES if name in asked}, **variables}


@lru_cache(KNOWN_TEMPLATES)
def _switches_of(template: str) -> frozenset[str]:
    """The switches that a template reads; attributes and words in strings do not count."""
    code = " ".join(_STRINGS.sub("''", tag) for tag in _TAGS.findall(template))
    return frozenset(one for one in SWITCHES if re.search(rf"(?<![\w.]){one}(?!\w)", code))
