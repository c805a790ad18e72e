"""Tokenizers of each kind that is about, trained in a moment on a few words."""

from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

WORDS = (
    *(
        "the",
        "cat",
        "mat,",
        "grüße",
        "東京",
        "東京東京",
        "🚀",
        "don't",
        "12345",
        "67",
        "aaaaaa",
    ),
    *("\n", "\n\n", "\t", "def f(x):", "abab", "<end>", "e\u0301", "...", "!!!", "", " ", "  "),
)
CORPUS = [" ".join(WORDS), "".join(WORDS), "the cat sat on the mat, and the dog ran. " * 3] * 9
LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<unk>", "<end>"]


def bytes_and_merges(*, prefix_space: bool = False) -> Tokenizer:
    """As GPT-2's."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    return made


def a_space_goes_before() -> Tokenizer:
    return bytes_and_merges(prefix_space=True)


def words_by_a_pattern() -> Tokenizer:
    """As Llama 3's and Qwen's."""
    made = Tokenizer(models.BPE(ignore_merges=True))
    made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(LLAMA_3), "isolated")
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([split, raw])
    return made


def one_long_word() -> Tokenizer:
    """As Llama 2's: nothing but merges says where a word ends."""
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    blank = normalizers.Replace(" ", "▁")
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blank])
    return made


def pieces_of_words() -> Tokenizer:
    """As BERT's."""
    made = Tokenizer(models.WordPiece(unk_token="<unk>", max_input_chars_per_word=30))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def likely_pieces() -> Tokenizer:
    """As XLM-RoBERTa's."""
    made = Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made


TRAINERS: dict[str, Callable[[], Any]] = {
    "BPE": lambda: trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    ),
    "WordPiece": lambda: trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=SPECIAL, show_progress=False
    ),
    "Unigram": lambda: trainers.UnigramTrainer(
        vocab_size=150, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    ),
}
KINDS = (
    *(bytes_and_merges, a_space_goes_before, words_by_a_pattern),
    *(one_long_word, pieces_of_words, likely_pieces),
)


@cache
def trained(kind: Callable[[], Tokenizer]) -> Tokenizer:
    made = kind()
    made.train_from_iterator(CORPUS, TRAINERS[type(made.model).__name__]())
    return made


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids
