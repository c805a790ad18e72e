"""What readers share whose answers turn from reasoning to content more than once."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class TurningReader:
    """`starts_open`: the answer begins within reasoning, which is left out unless
    `include_reasoning`. Its content begins after `content_start` characters.
    """

    starts_open: bool = False
    include_reasoning: bool = True
    found_reasoning: bool = field(init=False)
    content_start: int = 0
    plain: bool = False  # the rest is content without marks
    _num_read: int = 0  # characters
    _has_content: bool = False
    _held: str = ""  # what may become a mark, or an incomplete one

    def __post_init__(self) -> None:
        self.found_reasoning = self.starts_open

    def _begin_content(self, content: str, rest: str) -> None:
        """Note where the first content begins: with the `rest`, or just before it."""
        if content and not self._has_content:
            self._has_content, self.content_start = True, self._num_read - len(rest)
