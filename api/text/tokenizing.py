"""Text to token ids and back, with a checkpoint's tokenizer and chat template."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, cast

from api.errors import BadRequest, NoTokenizer
from api.hub import text_folder
from api.text.byte_pairs import BytePairEncoder, byte_pair_encoder
from api.text.contents import in_parts, wants_parts
from api.text.detokenizing import Detokenizer, TokenTexts
from api.text.tokenizer import Tokenizer
from api.text.truncation import NoCutPoint, TextTruncator
from api.text.turns import TurnCache, turn_splitter
from api.threads import Threads, few_threads
from engine.request import LARGEST_TOKEN
from engine.token_bytes import TokenBytes, is_byte_level, token_bytes_of

LONG = 1 << 18  # characters; a tokenizer takes about half a kilobyte for each
SLICE = 1 << 16
BY_FAR, FEW = 2, 64
THREADS = "TOKENIZERS_PARALLELISM"  # of a batch of texts; pdserve encodes one at a time
SAMPLE = [{"role": role, "content": "Hi"} for role in ("user", "assistant", "user")]
# what transformers raises for a file of another shape than it expects
MALFORMED = (OSError, ValueError, TypeError, KeyError, AttributeError)


@dataclass(frozen=True)
class TextCodec:
    """Encodes, decodes and renders text for one checkpoint; thread-safe.

    `fast` is the tokenizer's Rust part, where it has one. Long texts are encoded one at a
    time, as each takes much memory, in the threads for `long_work`.
    """

    tokenizer: Tokenizer
    fast: Any | None = None
    _one_long: Any = field(default_factory=Lock, compare=False, repr=False)
    long_work: Threads = field(default_factory=few_threads, compare=False, repr=False)

    @cached_property
    def num_token_ids(self) -> int:
        """One more than the largest token id."""
        return max(self.tokenizer.get_vocab().values()) + 1

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens, whose text is left out by default."""
        if self.fast is None:
            return frozenset(self.tokenizer.all_special_ids)
        added = self.fast.get_added_tokens_decoder().items()
        return frozenset(token for token, says in added if says.special)

    @cached_property
    def added_tokens(self) -> frozenset[str]:
        """The texts of tokens that were added to the vocabulary, as far as they are known."""
        found = self.fast.get_added_tokens_decoder().values() if self.fast else ()
        return frozenset(one.content for one in found)

    @cached_property
    def vocabulary(self) -> TokenBytes:
        """The texts of single tokens."""
        return token_bytes_of(self.fast, self._token_text)

    @cached_property
    def pairs(self) -> BytePairEncoder | None:
        """The faster BPE encoder; None if it might give other tokens."""
        return None if self.fast is None else byte_pair_encoder(self.fast)

    @cached_property
    def turns(self) -> TurnCache | None:
        """The cache of encoded chat turns; None where a chat cannot be split into turns."""
        written = str(self.tokenizer.chat_template)
        with suppress(BadRequest):  # some templates build marks from a role: '<|' + role + '|>'
            written += self.render(SAMPLE, {"add_generation_prompt": True})
        parts = turn_splitter(self.fast, written)
        return None if parts is None else TurnCache(parts)

    def warm_up(self) -> "TextCodec":
        """Compute all cached properties and return this codec: those that look at every token,
        and those that compile the chat template.
        """
        _ = self.num_token_ids, self.special_ids, self.vocabulary, self.turns, self.pairs
        return self

    def encode(self, text: str, *, special_tokens: bool = True) -> tuple[int, ...]:
        """Encode a text; `special_tokens`: with those that the tokenizer puts around it.

        It is encoded as a batch of one, as only that releases the GIL.
        """
        with self.encoding_lock(text):
            return self._encode(text, special_tokens=special_tokens)

    def single_token(self, text: str) -> int | None:
        """The single token whose text is exactly this, if there is one."""
        tokens = self._encode(text, special_tokens=False)
        alone = len(tokens) == 1 and self._token_text(tokens[0]) == text
        return tokens[0] if alone else None

    def vocabulary_entry(self, token: int) -> str:
        """The token as the vocabulary writes it, or its text if the tokenizer does not say."""
        known = None if self.fast is None else self.fast.id_to_token(token)
        return self._token_text(token) if known is None else str(known)

    def encoding_lock(self, *texts: str) -> AbstractContextManager[object]:
        """The lock to hold while encoding: long texts take turns, to save memory."""
        return self._one_long if any(len(text) > LONG for text in texts) else nullcontext()

    def far_exceeds(self, text: str, most: int) -> bool:
        """Whether a long text certainly has far more than `most` tokens.

        It is encoded in slices, only as far as needed; each cut adds at most a few tokens.
        """
        tokens, places = 0, range(0, len(text) if len(text) > LONG else 0, SLICE)
        for place in places:
            tokens += len(self._encode(text[place : place + SLICE], special_tokens=False))
            if far_exceeds(tokens, most):
                return True
        return False

    def keep_last(self, text: str, most: int) -> str:
        """A long text's end with at least its last `most` tokens, special tokens not counted;
        encoded in stretches. Raises BadRequest.
        """
        return self._truncate(text, lambda reader: reader.last(text, most))

    def keep_first(self, text: str, most: int) -> str:
        """A long text's beginning with at least its first `most` tokens; raises BadRequest."""
        return self._truncate(text, lambda reader: reader.first(text, most))

    def _truncate(self, text: str, cut: Callable[[TextTruncator], str]) -> str:
        if self.fast is None or len(text) <= LONG:
            return text
        try:
            with self.encoding_lock(text):
                return cut(TextTruncator(self.fast))
        except NoCutPoint as error:
            why = f"a text of more than {LONG} characters without a place to cut it at"
            raise BadRequest(f"{why} cannot be truncated", "truncate_prompt_tokens") from error

    def _encode(self, text: str, *, special_tokens: bool) -> tuple[int, ...]:
        pairs = self.pairs
        if pairs and (found := pairs.encode(text, special_tokens=special_tokens)) is not None:
            return found
        if self.fast is not None:
            batch = self.fast.encode_batch_fast([text], add_special_tokens=special_tokens)
            return tuple(batch[0].ids)
        return tuple(self.tokenizer.encode(text, add_special_tokens=special_tokens))

    def render(
        self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, object]
    ) -> str:
        """The conversation as the chat template writes it; raises BadRequest."""
        return self._render(in_parts(messages) if self.wants_parts else messages, template)

    @cached_property
    def wants_parts(self) -> bool:
        """Whether the chat template reads texts only in lists of parts."""
        return wants_parts(lambda messages: self._render(messages, {}))

    def _render(
        self, messages: Sequence[Mapping[str, Any]], template: Mapping[str, object]
    ) -> str:
        if not self.tokenizer.chat_template:
            raise BadRequest("the model has no chat template: use /v1/completions")
        try:
            render = self.tokenizer.apply_chat_template
            return str(render(list(messages), tokenize=False, **template))
        except RecursionError as error:
            why = "the messages or tools are nested too deeply for the chat template"
            raise BadRequest(why, "messages") from error
        except Exception as error:  # a template may raise anything, also on purpose
            raise BadRequest(f"the chat template refuses: {error}", "messages") from error

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The tokens' text, unchanged: spaces are not cleaned up."""
        if self.fast is not None:
            text = self.fast.decode(tokens, skip_special_tokens=skip_special_tokens)
        else:
            text = self.tokenizer.decode(
                tokens,
                skip_special_tokens=skip_special_tokens,
                clean_up_tokenization_spaces=False,
            )
        return str(text)

    def detokenizer(
        self, *, skip_special_tokens: bool = True, shown: tuple[str, ...] = ()
    ) -> Detokenizer:
        """A detokenizer for one answer; special tokens of these texts, `shown`, are kept."""
        kind = skip_special_tokens, shown
        if (one := self._detokenizers.get(kind)) is None:
            one = self._detokenizers[kind] = self._detokenizer(*kind)
        return one.fresh()

    @cached_property
    def _detokenizers(self) -> dict[tuple[bool, tuple[str, ...]], Detokenizer]:
        """An unused detokenizer for each setting; copies of it share its cache of texts."""
        return {}

    def _detokenizer(self, skip: bool, shown: tuple[str, ...]) -> Detokenizer:
        spared = (
            {one for one in self.special_ids if self._token_text(one) in shown} if shown else ()
        )
        hidden = self.special_ids.difference(spared) if skip else frozenset[int]()

        def decode(tokens: Sequence[int]) -> str:
            return self.decode(tokens, skip_special_tokens=False)

        def visible(token: int) -> bool:
            return token not in hidden and self._knows(token)

        alone = TokenTexts(decode, visible) if is_byte_level(self.fast) else None
        return Detokenizer(decode, visible, alone)

    def _token_text(self, token: int) -> str:
        return self.decode([token], skip_special_tokens=False)

    def _knows(self, token: int) -> bool:
        if self.fast is not None:
            return self.fast.id_to_token(token) is not None
        return token < self.num_token_ids


def far_exceeds(tokens: int, most: int) -> bool:
    """Whether this many tokens are too many, even if they were counted in slices."""
    return tokens > BY_FAR * most + FEW


def load_text_codec(folder: Path | str) -> TextCodec:
    """Load the codec of a folder or a hub name, warmed up; raises OSError, which names it.

    All caches are filled here: doing so later would delay every stream.
    """
    os.environ.setdefault(THREADS, "false")
    try:
        codec = text_codec(_load(text_folder(str(folder))))
    except MALFORMED as error:
        said = str(error) if isinstance(error, (OSError, ValueError)) else repr(error)
        why = " ".join(said.split())
        hint = "--tokenizer names another folder"
        raise OSError(f"no tokenizer is to be had from {folder} ({hint}): {why}") from error
    return codec.warm_up()


def _load(folder: Path) -> Tokenizer:
    """Load a tokenizer.json by the generic fast class, which takes a second and no torch."""
    from transformers.tokenization_utils_tokenizers import PreTrainedTokenizerFast

    if not folder.is_dir():
        raise OSError(f"{folder} is no folder")
    if (folder / "tokenizer.json").exists():
        return cast("Tokenizer", PreTrainedTokenizerFast.from_pretrained(folder))
    from transformers import AutoTokenizer  # takes seconds, and loads torch if it is installed

    return cast("Tokenizer", AutoTokenizer.from_pretrained(folder))


class _NoTokenizer:
    """A stand-in tokenizer: encodes nothing, and every token decodes to empty text."""

    chat_template: object = None
    all_special_ids: list[int] = []  # noqa: RUF012  as the protocol has it

    def get_vocab(self) -> dict[str, int]:
        return {"": LARGEST_TOKEN}

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        raise NoTokenizer("There is no tokenizer here")

    def decode(self, token_ids: Sequence[int], **options: bool) -> str:
        return ""

    def apply_chat_template(
        self, conversation: Sequence[Mapping[str, Any]], *, tokenize: bool, **template: object
    ) -> str:
        raise NoTokenizer("There is no tokenizer here")


def token_ids_only() -> TextCodec:
    """A codec for answers in token ids only: every id is valid, and none has any text."""
    return TextCodec(_NoTokenizer())


def text_codec(tokenizer: Tokenizer) -> TextCodec:
    """A codec that owns a transformers tokenizer, with truncation and padding turned off."""
    if (fast := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        fast.no_truncation()
        fast.no_padding()
    return TextCodec(tokenizer, fast)
