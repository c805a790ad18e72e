"""Translates errors about chat fields into the field names of another API. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from api.errors import ApiError

Renames = Sequence[tuple[re.Pattern[str], str]]


@dataclass(frozen=True, slots=True)
class ErrorFieldNames:
    """Field names of another API. `names` maps patterns of chat fields to them; `in_passing`
    does the same for fields that a message only mentions. Names in backticks are the client's
    own.
    """

    names: Renames
    in_passing: Renames

    def translate(self, error: ApiError) -> ApiError:
        """The same error, with the other API's field names in its message and `param`."""
        if error.param is None:
            return error
        name = error.param
        for theirs, ours in self.names:
            name = theirs.sub(ours, name)
        why = str(error).replace(error.param, name)
        for pattern, ours in self.in_passing:
            why = pattern.sub(ours, why)
        return type(error)(why, name)
