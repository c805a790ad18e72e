"""A tokenizer with one token for each byte, to check grammars without a model."""

from collections.abc import Sequence

from llguidance import LLTokenizer, TokenizerWrapper

END = 256  # after one token for each byte


class _Bytes:
    """The smallest vocabulary that can write any text."""

    eos_token_id = END
    bos_token_id = None
    special_token_ids = (END,)
    tokens = (*(bytes([byte]) for byte in range(END)), b"<end>")

    def __call__(self, text: bytes) -> Sequence[int]:
        return list(text)


def byte_tokenizer() -> LLTokenizer:
    """One token for each byte, and one for the end."""
    return LLTokenizer(TokenizerWrapper(_Bytes()))
