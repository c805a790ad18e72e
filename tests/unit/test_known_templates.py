"""What a chat template is for is found once, and not with every request."""

from collections.abc import Callable
from typing import Literal
from uuid import uuid4

import pytest

from api.reasoning.forms import FORMS, find_form
from api.tools.dialects.known import find_dialect


class Looked(str):
    """A template that counts how often somebody looks for a part of it."""

    looks = 0

    def __contains__(self, part: object) -> bool:
        self.looks += 1
        return isinstance(part, str) and super().__contains__(part)


@pytest.mark.parametrize("find", [find_dialect, find_form])
def test_a_template_is_looked_through_once(
    find: Callable[[Literal["auto"], object], object],
) -> None:
    template = Looked(f"[TOOL_CALLS] [THINK] {uuid4()}")
    found, looks = find("auto", template), template.looks
    assert looks
    assert find("auto", template) is found is not None
    assert template.looks == looks


def test_a_model_of_cohere_is_known_by_its_marks() -> None:
    assert find_form("auto", "<|START_THINKING|><|END_THINKING|>") is FORMS["cohere"]
    assert find_form("auto", "<think>") is not FORMS["minimax_m2"]
    assert FORMS["minimax_m2"].begun
