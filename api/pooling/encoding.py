"""Tokenizes inputs and pairs of texts, truncated so that their special tokens still fit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api.encoding import MOST_TOKENS, LengthLimit, check_length
from api.errors import BadRequest, NoTokenizer
from api.text.tokenizing import TextCodec

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EncodedInput:
    """One tokenized input; `token_types` (BERT's segment ids) where a pair needs them."""

    tokens: Tokens
    token_types: Tokens = ()


@dataclass(frozen=True, slots=True)
class InputEncoder:
    """Truncates inputs to `most` tokens; if that is None, they must fit into `context`."""

    codec: TextCodec | None
    most: int | None = None
    context: int | None = None
    side: str = "right"
    special_tokens: bool = True

    def text(self, text: str) -> EncodedInput:
        """Encode a text; its special tokens are never cut off. Raises ContextTooLong."""
        codec = self._codec(text)
        if (fast := codec.fast) is None:
            tokens = codec.encode(text, special_tokens=self.special_tokens)
            return EncodedInput(self.cut(tokens))
        text = self._end(codec, text)
        with codec.encoding_lock(text):
            (encoding,) = fast.encode_batch_fast([text], add_special_tokens=False)
        self._shorten(encoding, self._room(fast, pair=False))
        return self._finished(fast, encoding, None)

    def pair(self, first: str, second: str) -> EncodedInput:
        """Encode a pair as the tokenizer joins two texts; only the second text is truncated."""
        codec = self._codec(first, second)
        if (fast := codec.fast) is None:
            raise NoTokenizer("This model's tokenizer has no way to put two texts together")
        if self.most is not None and codec.far_exceeds(first, self.most):
            raise _no_room()
        second = self._end(codec, second)
        with codec.encoding_lock(first, second):
            one, two = fast.encode_batch_fast([first, second], add_special_tokens=False)
        room = self._room(fast, pair=True)
        self._shorten(two, None if room is None else room - len(one.ids))
        return self._finished(fast, one, two)

    def cut(self, tokens: Sequence[int]) -> Tokens:
        """Truncate given token ids, of which none is known to be a special token."""
        if self.most is None or len(tokens) <= self.most:
            return tuple(tokens)
        return tuple(tokens[: self.most] if self.side == "right" else tokens[-self.most :])

    def _codec(self, *texts: str) -> TextCodec:
        if self.codec is None:
            raise NoTokenizer("There is no tokenizer here: send token ids")
        most = self.context or MOST_TOKENS
        fit = LengthLimit(max_tokens=most if self.most is None else None, context=self.context)
        for text in texts:
            check_length(self.codec, text, fit)
        return self.codec

    def _end(self, codec: TextCodec, text: str) -> str:
        """The part of a long text that will be kept, and a little more."""
        if self.most is None:
            return text
        return (codec.keep_first if self.side == "right" else codec.keep_last)(text, self.most)

    def _room(self, fast: Any, *, pair: bool) -> int | None:  # noqa: ANN401  of tokenizers
        if self.most is None:
            return None
        around = fast.num_special_tokens_to_add(pair) if self.special_tokens else 0
        return self.most - int(around)

    def _shorten(self, encoding: Any, room: int | None) -> None:  # noqa: ANN401
        if room is None or len(encoding.ids) <= room:
            return
        if room < 1:
            raise _no_room()
        encoding.truncate(room, direction=self.side)

    def _finished(self, fast: Any, one: Any, two: Any) -> EncodedInput:  # noqa: ANN401
        whole = fast.post_process(one, two, self.special_tokens)
        types = tuple(whole.type_ids)
        return EncodedInput(tuple(whole.ids), types if any(types) else ())


def _no_room() -> BadRequest:
    param = "truncate_prompt_tokens"
    return BadRequest(f"{param} leaves no room for what is to be cut", param)
