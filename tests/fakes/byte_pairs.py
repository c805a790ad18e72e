"""Small tokenizers of bytes of all kinds that are known, and both ways to their tokens."""

from random import Random
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from api.text.byte_pairs import BytePairEncoder
from api.text.pre_tokenization import DEEPSEEK_3, GPT_OSS, LLAMA_3, NEMO, QWEN_2

PATTERNS = {
    "llama-3": (LLAMA_3,),
    "qwen-2": (QWEN_2,),
    "nemo": (NEMO,),
    "gpt-oss": (GPT_OSS,),
    "deepseek-3": DEEPSEEK_3,
}
KINDS = ("gpt-2", *PATTERNS)
SPECIAL = ["<s>", "<s>x", "<|end|>"]
LETTERS_OF = "ab cde\nABé漢字12 .,'st/\0"


def split_by(*patterns: str, behavior: str = "isolated") -> Any:  # noqa: ANN401
    """Cuts texts by one pattern after the other."""
    invert = behavior == "removed"
    splits = [pre_tokenizers.Split(Regex(one), behavior, invert=invert) for one in patterns]
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, raw])


def trained(kind: str, seed: int = 0) -> Tokenizer:
    """One of a kind, with `SPECIAL` tokens, that knows words of `LETTERS_OF`."""
    random, made = Random(seed), Tokenizer(models.BPE(ignore_merges=kind != "gpt-2"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind in PATTERNS:
        made.pre_tokenizer = split_by(*PATTERNS[kind])
    if kind == "qwen-2":
        made.normalizer = normalizers.NFC()
    lengths = [random.randrange(5, 200) for _ in range(60)]
    trainer = BpeTrainer(
        vocab_size=random.choice((300, 400, 700)),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    corpus = ["".join(random.choices(LETTERS_OF, k=length)) for length in lengths]
    made.train_from_iterator(corpus, trainer)
    return made


def theirs(tokenizer: Tokenizer, text: str, *, special: bool = False) -> tuple[int, ...]:
    """The tokenizer's own."""
    return tuple(tokenizer.encode(text, add_special_tokens=special).ids)


def ours(
    pairs: BytePairEncoder | None, text: str, *, special: bool = False
) -> tuple[int, ...] | None:
    """What the quick way says; None: it cannot tell."""
    assert pairs is not None
    return pairs.encode(text, special_tokens=special)
