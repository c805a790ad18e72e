"""What a chat is refused for, by the names that its fields have in another form. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from api.errors import ApiError

Named = Sequence[tuple[re.Pattern[str], str]]


@dataclass(frozen=True, slots=True)
class OwnWords:
    """`names`: what chats call a field, and what it is called in this form. `in_passing`: the
    same where another field is refused; names that are a client's are in backticks.
    """

    names: Named
    in_passing: Named

    def tell(self, error: ApiError) -> ApiError:
        """The same error in own words."""
        if error.param is None:
            return error
        name = error.param
        for theirs, ours in self.names:
            name = theirs.sub(ours, name)
        why = str(error).replace(error.param, name)
        for pattern, ours in self.in_passing:
            why = pattern.sub(ours, why)
        return type(error)(why, name)
