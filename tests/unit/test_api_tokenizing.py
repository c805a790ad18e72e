"""A checkpoint's tokenizer, read from its folder, and what we do not let it do."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, processors

from api.text.tokenizing import TextCodec, load_text_codec
from tests.fakes.text import EOS, TEMPLATE, TEXT, byte_level, metaspace

CODEC = byte_level()
HI = [{"role": "user", "content": "hi"}]


def folder(path: Path, *, truncate: bool = False) -> Path:
    """A checkpoint whose tokenizer begins every text with token 0."""
    tokenizer: Any = CODEC.tokenizer
    tokenizer.save_pretrained(path)
    fast = type(CODEC.fast).from_file(str(path / "tokenizer.json"))  # type: ignore[union-attr]
    fast.post_processor = processors.TemplateProcessing(
        single="</s> $A", special_tokens=[("</s>", EOS)]
    )
    if truncate:
        fast.enable_truncation(4)
        fast.enable_padding(length=50)
    fast.save(str(path / "tokenizer.json"))
    return path


def test_a_folder_is_all_it_takes(tmp_path: Path) -> None:
    codec = load_text_codec(folder(tmp_path))
    assert codec.encode("the cat") == (EOS, *CODEC.encode("the cat"))
    assert codec.encode("the cat", special_tokens=False) == CODEC.encode("the cat")
    assert codec.decode(codec.encode("the cat")) == "the cat"
    assert codec.render(HI, {"add_generation_prompt": True}) == "<|user|>hi<|assistant|>"
    assert codec.num_token_ids == CODEC.num_token_ids


def test_no_request_waits_for_a_look_at_all_tokens(tmp_path: Path) -> None:
    codec = load_text_codec(folder(tmp_path))
    assert {"num_token_ids", "special_ids", "vocabulary"} <= set(vars(codec))


@pytest.mark.parametrize("codec", [byte_level(), metaspace(byte_fallback=True)])
def test_bytes_of_added_tokens_are_those_of_their_text(codec: TextCodec) -> None:
    """Gemma has runs of "▁" among them, which are blanks; others are what they are."""
    copy: Any = type(codec.fast).from_str(codec.fast.to_str())  # type: ignore[union-attr]
    copy.add_tokens([AddedToken("▁▁▁", normalized=False), AddedToken("<e>", normalized=False)])
    added = TextCodec(codec.tokenizer, copy)
    for token in map(copy.token_to_id, ("▁▁▁", "<e>")):
        said = added.decode([EOS, token, EOS], skip_special_tokens=False)
        assert added.vocabulary.text_of(token) == said.removeprefix("</s>").removesuffix("</s>")


class Terse:
    """A tokenizer's Rust part that is never written down as a whole."""

    def __init__(self, fast: object) -> None:
        self._fast = fast

    def __getattr__(self, name: str) -> object:
        assert name != "to_str", "a second in which no other thread runs"
        return getattr(self._fast, name)


def test_a_vocabulary_is_in_memory_once_and_never_written_down(tmp_path: Path) -> None:
    codec = load_text_codec(folder(tmp_path))
    tokenizer: Any = codec.tokenizer
    assert codec.fast is tokenizer.backend_tokenizer
    terse = TextCodec(tokenizer, Terse(codec.fast)).warm_up()
    for skips in (True, False):
        detokenizer = terse.detokenizer(skip_special_tokens=skips)
        assert "".join(map(detokenizer.add, terse.encode("the", special_tokens=False))) == "the"
    assert terse.vocabulary.text_of(codec.encode("a")[1]) == "a"


def test_no_text_is_cut_or_padded(tmp_path: Path) -> None:
    codec = load_text_codec(folder(tmp_path, truncate=True))
    for text in ("a", TEXT):
        assert codec.decode(codec.encode(text)) == text
        assert len(codec.encode(text)) == 1 + len(CODEC.encode(text))


@pytest.mark.parametrize("text", ["the cat", "grüße 🚀", "a , b ."])
def test_a_tokenizer_without_a_rust_part_reads_and_writes_the_same(text: str) -> None:
    slow = TextCodec(CODEC.tokenizer)
    tokens = slow.encode(text)
    assert tokens == CODEC.encode(text)
    detokenizer = slow.detokenizer()
    pieces = [detokenizer.add(token) for token in (*tokens, EOS, slow.num_token_ids)]
    assert "".join([*pieces, detokenizer.finish()]) == text == slow.decode(tokens)


async def test_a_long_text_holds_nobody_up() -> None:
    """The loop that all streams share goes on while another thread encodes."""
    began = before = time.monotonic()
    encoding, longest = asyncio.create_task(asyncio.to_thread(CODEC.encode, TEXT * 5_000)), 0.0
    while not encoding.done():
        await asyncio.sleep(0)
        now = time.monotonic()
        longest, before = max(longest, now - before), now
    assert longest < (before - began) / 2


def test_special_tokens_are_shown_if_asked_for() -> None:
    tokens = [*CODEC.encode("a"), EOS]
    assert CODEC.decode(tokens) == "a"
    assert CODEC.decode(tokens, skip_special_tokens=False) == "a</s>"
    assert TEMPLATE in str(CODEC.tokenizer.chat_template)


@pytest.mark.parametrize(
    ("name", "said"),
    [("none", "no tokenizer is to be had from .*none is no folder"), (".", "to be had from")],
)
def test_where_there_is_no_tokenizer(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=said) as error:
        load_text_codec(tmp_path / name)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["3", "[]", '{"added_tokens_decoder": 3}', ""])
def test_a_file_of_another_shape_is_no_tokenizer(name: str, text: str, tmp_path: Path) -> None:
    folder(tmp_path / "model")
    (tmp_path / "model" / name).write_text(text)
    with pytest.raises(OSError, match="no tokenizer is to be had from"):
        load_text_codec(tmp_path / "model")


def test_what_is_missing_in_a_file_is_said_to_be_missing(tmp_path: Path) -> None:
    (folder(tmp_path / "model") / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(OSError, match=r"KeyError\('added_tokens'\)"):
        load_text_codec(tmp_path / "model")


def test_a_file_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path to one looks like a name on the hub, where nobody has to look for it."""
    monkeypatch.chdir(tmp_path)
    (folder(tmp_path / "model") / "config.json").touch()
    with pytest.raises(OSError, match=r"model/config\.json is no folder"):
        load_text_codec("model/config.json")


def test_home_is_where_the_shell_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "model")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load_text_codec("~/model").num_token_ids == CODEC.num_token_ids


def test_a_text_is_encoded_by_who_asks(tmp_path: Path) -> None:
    """A pool of threads would be woken for each text, and there is one text at a time."""
    code = (
        "import os; from api.text.tokenizing import load_text_codec; "
        f"codec = load_text_codec({str(folder(tmp_path))!r}); "
        "count = lambda: len(os.listdir('/proc/self/task')); "
        "before = count(); codec.encode('Hello there'); print(count() - before)"
    )
    unset = {name: value for name, value in os.environ.items() if "PARALLELISM" not in name}
    said = subprocess.run(
        [sys.executable, "-c", code], env=unset, capture_output=True, check=True
    )
    assert said.stdout.strip() == b"0"
