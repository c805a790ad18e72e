"""The part of a transformers tokenizer that is used here."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """A tokenizer with a chat template."""

    chat_template: object
    all_special_ids: list[int]

    def get_vocab(self) -> dict[str, int]: ...  # noqa: D102

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...  # noqa: D102

    def decode(self, token_ids: Sequence[int], **options: bool) -> str: ...  # noqa: D102

    def apply_chat_template(  # noqa: D102
        self, conversation: Sequence[Mapping[str, Any]], *, tokenize: bool, **template: object
    ) -> str: ...
