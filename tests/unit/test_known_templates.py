"""What a chat template is for is found once, and not with every request."""

from collections.abc import Callable
from typing import Literal
from uuid import uuid4

import pytest

from api.reasoning.formats import REASONING_FORMATS, find_format
from api.tools.dialects.known import find_dialect


class Looked(str):
    """A template that counts how often somebody looks for a part of it."""

    looks = 0

    def __contains__(self, part: object) -> bool:
        self.looks += 1
        return isinstance(part, str) and super().__contains__(part)


@pytest.mark.parametrize("find", [find_dialect, find_format])
def test_a_template_is_looked_through_once(
    find: Callable[[Literal["auto"], object], object],
) -> None:
    template = Looked(f"[TOOL_CALLS] [THINK] {uuid4()}")
    found, looks = find("auto", template), template.looks
    assert looks
    assert find("auto", template) is found is not None
    assert template.looks == looks


def test_a_model_of_cohere_is_known_by_its_marks() -> None:
    assert (
        find_format("auto", "<|START_THINKING|><|END_THINKING|>") is REASONING_FORMATS["cohere"]
    )
    assert find_format("auto", "<think>") is not REASONING_FORMATS["minimax_m2"]
    assert REASONING_FORMATS["minimax_m2"].starts_open
