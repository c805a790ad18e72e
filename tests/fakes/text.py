"""A tiny tokenizer made on the spot, and a door that says what a script tells it to."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from api.generator import WHOLE, Event, Leg, PromptEvent, StreamFailed, Tap, TokenEvent
from api.served import ServedModel
from api.text.tokenizing import TextCodec, text_codec
from api.text_files import TextParcel, gather
from engine.request import FinishReason, Request

EOS = 0
TEXT = "the cat sat on the mat, and the dog ran to the sea. grüße aus 東京 🚀 "
TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'villain' %}{{ raise_exception('no villains') }}{% endif %}"
    "{{ '<|' + m.role + '|>' + m.content }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ style }}{% endif %}"
)


@cache
def byte_level(template: str | None = TEMPLATE) -> TextCodec:
    """Bytes and some merges of TEXT; token 0 ends an answer and is special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["</s>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 4, trainer)
    return _codec(tokenizer, template)


def marked_turns() -> TextCodec:
    """The same with the marks of TEMPLATE as special tokens; new each time."""
    tokenizer = Tokenizer.from_str(byte_level().fast.to_str())  # type: ignore[union-attr]
    tokenizer.add_special_tokens(["<|user|>", "<|assistant|>"])
    return _codec(tokenizer, TEMPLATE)


def metaspace(*, byte_fallback: bool = False) -> TextCodec:
    """Like sentencepiece: a space is part of the word after it, and the first is not said."""
    words = ["</s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256) if byte_fallback)]
    words += ["▁", *dict.fromkeys(TEXT.replace(" ", "▁")), "▁the", "▁cat", "▁sat", "at", ""]
    vocabulary = {word: token for token, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(
        models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=byte_fallback)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    if byte_fallback:
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return _codec(tokenizer, None)


@cache
def halved_marks() -> TextCodec:
    """A word for each token that the model without weights says, and halves of marks."""
    halves = ["<thi", "</thi", "nk>"]
    words = ["</s>", "<unk>", *halves, *(f"{n} " for n in range(45))]
    vocabulary = {word: token for token, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    return _codec(tokenizer, TEMPLATE)


def _codec(tokenizer: Tokenizer, template: str | None) -> TextCodec:
    wrap: Any = PreTrainedTokenizerFast
    fast = wrap(tokenizer_object=tokenizer, eos_token="</s>")
    fast.chat_template = template
    return text_codec(fast)


def checkpoint_of(codec: TextCodec, folder: Path) -> Path:
    """A folder with this tokenizer and a config, and no weights."""
    tokenizer: Any = codec.tokenizer
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return folder


@cache
def parcel_of_text(template: str | None = TEMPLATE) -> TextParcel:
    """What a node with `byte_level` gives."""
    codec = byte_level(template)
    with TemporaryDirectory() as name:
        folder = str(checkpoint_of(codec, Path(name) / "m"))
        return gather(folder, folder, "auto", codec)


def served(codec: TextCodec | None = None, *, context: int | None = 200) -> ServedModel:
    """One model under two names."""
    return ServedModel(("tiny", "alias"), codec or byte_level(), lambda: context, created=7)


def says(
    tokens: Sequence[int],
    finish: FinishReason = FinishReason.STOP,
    *,
    cached: int = 0,
    stop_reason: int | None = None,
) -> list[Event]:
    """The usual events of one answer, a token each."""
    events: list[Event] = [PromptEvent(cached)]
    events += [TokenEvent((token,)) for token in tokens[:-1]]
    return [*events, TokenEvent((tokens[-1],), finish, stop_reason)]


Script = Callable[[Request, Leg], Sequence[Event | StreamFailed]]


@dataclass
class FakeDoor:
    """A Generator that plays a script, and counts what is open."""

    script: Script
    asked: list[tuple[Request, Leg]] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    read: int = 0

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        self.asked.append((request, leg))
        self.opened += 1
        try:
            for event in self.script(request, leg):
                if isinstance(event, StreamFailed):
                    raise event
                self.read += 1
                yield event
        finally:
            self.closed += 1

    @property
    def request(self) -> Request:
        """The only one there was."""
        ((request, _),) = self.asked
        return request


def saying(text: str, codec: TextCodec | None = None) -> FakeDoor:
    """Answers everybody with this text and the end of sequence."""
    tokens = (codec or byte_level()).encode(text)
    return FakeDoor(lambda request, leg: says([*tokens, EOS]))


class OneToken:
    """A generator that says one token, and then nothing."""

    def __init__(self) -> None:
        self.waits, self.closed = asyncio.Event(), asyncio.Event()

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        try:
            yield PromptEvent(0)
            yield TokenEvent((byte_level().encode("the")[0],))
            self.waits.set()
            await asyncio.Event().wait()
        finally:
            self.closed.set()


class Waiting:
    """A generator that says one token to each caller, and another once it is let go.

    `none_open` is set while it answers nobody.
    """

    def __init__(self) -> None:
        self.go, self.none_open, self.open = asyncio.Event(), asyncio.Event(), 0

    async def stream(
        self, request: Request, leg: Leg = WHOLE, tap: Tap | None = None
    ) -> AsyncGenerator[Event]:
        the, cat = byte_level().encode("the cat")[:2]
        self.open += 1
        self.none_open.clear()
        try:
            yield PromptEvent(0)
            yield TokenEvent((the,))
            await self.go.wait()
            yield TokenEvent((cat,), FinishReason.LENGTH)
        finally:
            self.open -= 1
            if not self.open:
                self.none_open.set()
