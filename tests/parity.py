"""`python -m tests.parity` writes docs/reference/models.md: what the tests show of each family.

Nothing on the page is written by hand but these few sentences: its rows are the parameters of
test_parity.py, test_families.py and test_adapter.py in tests/integration, all of which
`make test` runs, and none of which may be skipped. A house test compares page and parameters.
"""

from collections.abc import Iterator
from pathlib import Path

from engine.models.families import FAMILIES
from tests.fakes.adapted import ADAPTED, STATEFUL
from tests.fakes.families import Feature, covered
from tests.fakes.mixtures import EVERY_CASE

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "models.md"
HEAD = """# Models

Made by `python -m tests.parity` from the tests of `tests/integration/test_parity.py` and
`tests/integration/test_families.py`, which compare every family with transformers on tiny
random checkpoints. `make test` runs all of them.

Checkpoints are folders in the Hugging Face layout: `config.json`, safetensors;
those that are quantized run as [these do](gpu-kernels.md#weights-of-8-and-of-4-bits).
The experts of gpt-oss may be packed as MXFP4; they are unpacked when they are read. Experts
may be stored one by one, as published, or stacked, as transformers has them. What a config
asks for and we do not do is refused by name when a node starts.

Random weights say nothing of a published model's range. Gemma 2 and 3 and GLM-4 were trained in
bfloat16, and their values are known to leave what float16 can hold: run them in bfloat16. Of
models of text and images (`gemma3`, `mistral3`) only the text's part is loaded.

## Families and features

The dtypes in which a feature was compared with transformers. In float32, 64 greedy tokens are
those of transformers after every prompt (a token whose logit is within 0.0001 of the best
counts as the best). In bfloat16 and float16, 16 tokens are, up to what rounding costs
transformers itself, and so are the logits of a prompt. With experts, nine of ten tokens are:
rounding also decides between two experts that score alike, here as in transformers.

- whole prompts, chunked prompts: five prompts of 1 to 130 tokens, run at once, each in one
  piece, or in pieces
- odd blocks: in blocks of 5 tokens and pieces that fit nothing
- shared prefixes: prompts that begin with the blocks of others
- windows: layers that see fewer tokens than the prompt has
- split: the prompt on one engine, the answer on another, with the KV carried over
"""
SETTINGS = """
## What configs may ask for

Each was compared with transformers in float32: 24 greedy tokens after up to eight prompts of 1
to 130 tokens, and the logits of the longest. "Of old" are spellings of older checkpoints.
"""
LONGROPE = """
LongRoPE's factors are chosen by `--max-model-len`, as in vLLM, and not by the length of each
sequence, as in transformers ([why](../decisions/0012-longrope-by-the-longest.md)): both agree
up to the trained length if `--max-model-len` is not above it, and beyond it otherwise.
"""
ADAPTED_HEAD = """
## Through transformers' own code

Any other decoder of transformers runs through its own code over our attention, if it says over
KV blocks what it says alone: that is tried when a node starts, on two short prompts
([why](../decisions/0022-transformers-code-for-other-models.md)). It is slower than a family of
ours. `--model-impl transformers` runs those so, too.

Compared like the families above, in float32, in chunks: 64 greedy tokens after five prompts of
1 to 75 tokens, and the logits of the longest.
"""
REFUSED_HEAD = """
Refused, as others are that keep more than keys and values or attend in a way of their own:
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, "\n", *_features(), SETTINGS, "\n", *_settings(), LONGROPE]
    return "".join([*parts, ADAPTED_HEAD, "\n", *_adapted(), REFUSED_HEAD, "\n", *_refused()])


def _features() -> Iterator[str]:
    yield from _row("architecture", "`model_type`", *Feature)
    yield from _row(*["---"] * (2 + len(Feature)))
    dtypes = dict[tuple[str, Feature], list[str]]()
    for family, dtype, feature in covered():
        dtypes.setdefault((family, feature), []).append(dtype)
    for family, known in FAMILIES.items():
        cells = [", ".join(dtypes.get((family, feature), ["has none"])) for feature in Feature]
        yield from _row(known.architecture, f"`{family}`", *cells)


def _settings() -> Iterator[str]:
    yield from _row("`model_type`", "compared")
    yield from _row("---", "---")
    for family in FAMILIES:
        names = [case.name for case in EVERY_CASE if case.family == family]
        yield from _row(f"`{family}`", "; ".join(names))


def _adapted() -> Iterator[str]:
    yield from _row("`model_type`", "with a window")
    yield from _row("---", "---")
    for family, settings in ADAPTED.items():
        yield from _row(f"`{family}`", "yes" if "sliding_window" in settings else "has none")


def _refused() -> Iterator[str]:
    yield from _row("`model_type`", "told")
    yield from _row("---", "---")
    for family, (_, why) in STATEFUL.items():
        yield from _row(f"`{family}`", f'"{why} …"')


def _row(*cells: str) -> Iterator[str]:
    yield f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
