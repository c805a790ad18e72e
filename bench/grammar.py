"""`python -m bench.grammar`: what grammars cost over a large vocabulary.

Compile time, the time of a mask, and the cost of a batch's step, over a vocabulary of 150,000
made-up byte strings. If xgrammar is installed it is measured as well; pdserve does not need it.
"""

import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from engine.grammars.compiling import GrammarCache
from engine.grammars.sources import limits, to_llguidance
from engine.grammars.vocabulary import GrammarVocabulary, token_set_of
from engine.request import Grammar
from engine.sampling.masks import apply_bitmask, empty_bitmask

SIZE, SPECIAL, BATCH, STEPS, RUNS = 150_000, 8, 8, 200, 5
END = SIZE - 1
MS, US = 1e3, 1e6
SYLLABLES = [a + b + c for a in "bcdfghklmnprstvwz" for b in "aeiou" for c in ("", *"nrsl")]
MARKS = [chr(code) for code in range(33, 127) if not chr(code).isalnum()]
JSON_MARKS = ['{"', '":', ' "', '",', '"}', '"},', '": "', '": {', "[{", "}]", "},{", '": [']
NESTED = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string"},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
                "kind": {"enum": ["home", "work", "other"]},
            },
            "required": ["street", "zip", "kind"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
GRAMMARS = {
    "schema": Grammar("json_schema", json.dumps(NESTED)),
    "any object": Grammar("json_object"),
    "regex": Grammar("regex", r"[A-Z][a-z]+ [A-Z][a-z]+, [0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "ebnf": Grammar(
        "ebnf",
        'root ::= term ([-+*/] term)*\nterm ::= [0-9]+ | [a-z]+ "(" root ")" | "(" root ")"',
    ),
}


@dataclass(frozen=True)
class ByteStrings:
    """A vocabulary in the form that both libraries take."""

    tokens: Sequence[bytes]
    eos_token_id: int = END
    bos_token_id: int | None = None

    @property
    def special_token_ids(self) -> Sequence[int]:
        """The last token."""
        return range(SIZE - SPECIAL, SIZE)

    def __call__(self, text: bytes) -> Sequence[int]:
        """Tokenize byte by byte; only text that the grammar forces is ever tokenized."""
        return list(text)


def made_up() -> ByteStrings:
    """A vocabulary of bytes, blanks, numbers, punctuation, Chinese and made-up words."""
    chance, seen = random.Random(0), dict[bytes, None]()
    seen.update(dict.fromkeys(bytes([byte]) for byte in range(256)))
    blanks = (unit * n for n in range(1, 64) for unit in (" ", "\t", "\n"))
    numbers, pairs = map(str, range(1000)), (a + b for a in MARKS for b in MARKS)
    han = (chr(code) for code in range(0x4E00, 0x4E00 + 15_000))
    for some in (blanks, numbers, JSON_MARKS, pairs, han):
        seen.update(dict.fromkeys(text.encode() for text in some))
    while len(seen) < SIZE - SPECIAL:
        word = "".join(chance.choices(SYLLABLES, k=chance.randint(1, 4)))
        shaped = chance.choice((f" {word}", f" {word}", word, word.capitalize(), word.upper()))
        seen[shaped.encode()] = None
    return ByteStrings([*seen, *(f"<|special {n}|>".encode() for n in range(SPECIAL))])


@dataclass(frozen=True, slots=True)
class Library:
    """A grammar library: how it compiles, makes masks, and advances by a token."""

    name: str
    compile: Callable[[Grammar], object]
    begin: Callable[[Any], Any]
    fill: Callable[[Any, torch.Tensor], object]
    take: Callable[[Any, int], bool]


def ours(tokenizer: LLTokenizer) -> Library:
    """llguidance, as the engine uses it."""

    def compiled(grammar: Grammar) -> LLMatcher:
        written = to_llguidance(grammar)
        return LLMatcher(tokenizer, written, log_level=0, limits=limits())

    def fill(matcher: LLMatcher, words: torch.Tensor) -> None:
        matcher.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * words.itemsize)

    return Library("llguidance", compiled, LLMatcher.deep_copy, fill, LLMatcher.consume_token)


def theirs(strings: ByteStrings) -> Library:
    """xgrammar, without its cache, on both cores."""
    xgrammar: Any = import_module("xgrammar")
    info = xgrammar.TokenizerInfo(
        list(strings.tokens), vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[END]
    )
    compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
    compilers = {
        "json_schema": compiler.compile_json_schema,
        "json_object": lambda _: compiler.compile_builtin_json_grammar(),
        "regex": compiler.compile_regex,
        "ebnf": compiler.compile_grammar,
    }
    return Library(
        "xgrammar",
        lambda grammar: compilers[grammar.kind](grammar.source),
        xgrammar.GrammarMatcher,
        lambda matcher, words: matcher.fill_next_token_bitmask(words),
        lambda matcher, token: bool(matcher.accept_token(token)),
    )


def measure(library: Library, grammar: Grammar) -> str:
    """One line: the times of compiling, and of masks along random answers."""
    compiling, filling, chance = list[float](), list[float](), random.Random(1)
    words = empty_bitmask(1, SIZE)
    for _ in range(RUNS):
        began = time.perf_counter()
        compiled = library.compile(grammar)
        compiling.append(time.perf_counter() - began)
        matcher, tokens = library.begin(compiled), [0]
        for _ in range(STEPS):
            began = time.perf_counter()
            library.fill(matcher, words)
            filling.append(time.perf_counter() - began)
            bits = np.unpackbits(words.numpy().view(np.uint8), bitorder="little")
            tokens = bits.nonzero()[0].tolist()
            token = chance.choice(tokens)
            if token == END or not library.take(matcher, token):
                break
    low, median, high = min(compiling), statistics.median(compiling), max(compiling)
    tail = statistics.quantiles(filling, n=100)[98]
    return (
        f"{library.name:10}  compile {median * MS:8.2f} ms ({low * MS:.2f} .. {high * MS:.2f})"
        f"  mask {statistics.median(filling) * US:7.1f} µs  p99 {tail * US:8.0f}"
        f"  most {max(filling) * US:8.0f}"
    )


def step_cost(vocabulary: GrammarVocabulary, grammar: Grammar) -> Iterable[tuple[str, float]]:
    """Medians over steps of a batch: making masks, and applying them to the logits."""
    book, chance = GrammarCache(vocabulary), random.Random(2)
    matchers = [book.matcher(grammar, frozenset([END])) for _ in range(BATCH)]
    filling, applying = list[float](), list[float]()
    logits = torch.zeros(BATCH, SIZE)
    for _ in range(40):
        bits = empty_bitmask(BATCH, SIZE)
        logits.fill_(0)
        began = time.perf_counter()
        for row, matcher in enumerate(matchers):
            matcher.fill_bitmask((), bits, row)
        filled = time.perf_counter()
        apply_bitmask(logits, range(BATCH), bits)
        filling.append(filled - began)
        applying.append(time.perf_counter() - filled)
        for row, matcher in enumerate(matchers):
            tokens = (logits[row] == 0).nonzero().flatten().tolist()
            matcher.advance([chance.choice(tokens)])
    yield "masks of 8 answers", statistics.median(filling)
    yield "laid over their logits", statistics.median(applying)


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    strings = made_up()
    began = time.perf_counter()
    tokenizer = LLTokenizer(TokenizerWrapper(strings))
    print(f"vocabulary of {SIZE}, read in {time.perf_counter() - began:.2f} s")  # noqa: T201
    libraries = [ours(tokenizer)]
    if find_spec("xgrammar") is not None:
        libraries.append(theirs(strings))
    for name, grammar in GRAMMARS.items():
        for library in libraries:
            print(f"{name:10}  {measure(library, grammar)}")  # noqa: T201
    text = token_set_of(range(SIZE - SPECIAL), SIZE)
    vocabulary = GrammarVocabulary(tokenizer, SIZE, text, (END,))
    for name in ("schema", "regex"):
        for what, seconds in step_cost(vocabulary, GRAMMARS[name]):
            print(f"{name:10}  {what:22} {seconds * US:8.0f} µs a step")  # noqa: T201


if __name__ == "__main__":
    main()
