"""`python -m tests.parity` writes docs/reference/models.md: what the tests show of each family.

Nothing on the page is written by hand but these few sentences: its rows are the parameters of
test_parity.py, test_families.py and test_adapter.py in tests/integration, all of which
`make test` runs, and none of which may be skipped. A house test compares page and parameters.
"""

from collections.abc import Iterator
from pathlib import Path

from engine.models.families import FAMILIES
from tests.fakes.families import Feature, covered
from tests.fakes.mixtures import EVERY_CASE
from tests.fakes.transformers_shapes import ADAPTED, STATEFUL

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "models.md"
HEAD = """# Models

`python -m tests.parity` generates this page from `tests/integration/test_parity.py` and
`tests/integration/test_families.py`, which compare every family with transformers on tiny
random checkpoints. `make test` runs all of these tests.

Checkpoints are folders in the Hugging Face layout: `config.json` and safetensors. Quantized
checkpoints run as [described for GPU kernels](gpu-kernels.md#weights-of-8-and-of-4-bits).
The experts of gpt-oss may be packed as MXFP4; they are unpacked when they are read. Experts
may be stored one by one, as published, or stacked, as in transformers; Granite's are stacked
as published. If a config asks for
something that pdserve does not support, it is refused by name when a node starts. Layers for
multi-token prediction can [draft tokens](../howto/speculate.md#draft-heads), if they are
stored as in DeepSeek V3 and GLM-4.5; else they are left out. A `config.json` that
names code of its own (`auto_map`) runs by our code; Kimi K2, whose tokenizer is such code,
needs a `tokenizer.json` beside it.

Tests with random weights do not cover the value range of a published model. Gemma 2 to 4 and
GLM-4 were trained in bfloat16, and their values are known to exceed the range of float16: run
them in bfloat16.

Qwen3-Next, Qwen3.5, Granite 4.0-H, Bamba, Nemotron-H and LFM2 keep a state in many of their
layers, and Falcon-H1 in all of them, beside attention. It is handed over with the KV. Prefixes
are shared where [the state was copied](../decisions/0106-snapshots-of-states.md), also [in
answers](../decisions/0109-copies-of-states-in-answers.md). They run
without drafts. Several ranks share out the heads of keys (of Granite's, Bamba's and some of
Falcon-H1's there is one; [why](../decisions/0105-states-in-kv-blocks.md)), or the channels of
LFM2's convolutions. In prompts, transformers makes no step of a Nemotron-H smaller than
`time_step_min`. pdserve has no such limit, like the code that these models were published with;
the tests set it to almost nothing.

Most of Falcon-H1's multipliers become part of the weights when they are read: a weight is
multiplied in float32 and rounded once, of a quantized one only the scales change, and adapters
are multiplied alike. transformers rounds what it multiplies instead, so in half precision both
have errors of the same size, but not the same ones. Embeddings and logits are multiplied when
they are made, and the multiplier of keys is part of the scale of scores. A norm before the
gates (`mamba_norm_before_gate` with `mamba_rms_norm`) is refused.

Gemma 4's local and global layers have heads of different numbers and widths, and global ones
must be as wide as the others or twice as wide. Nodes exchange its KV if their block sizes are
equal ([why](../decisions/0107-two-kinds-of-layers.md)). It runs with shared KV and an input of
each layer's own (E2B, E4B), with keys as values (31B), and with experts beside the MLP
(26B-A4B). Images and sound are left out.

Of models for text and images (architectures in `ForConditionalGeneration`), only the text part
is loaded; a request with an image is refused. Where each token has three positions (m-rope),
those of text are equal, so a text has the plain rotary embedding.

## Families and features

The table lists the dtypes in which each feature was compared with transformers. In float32,
64 greedy tokens after every prompt equal those of transformers (a token whose logit is within
0.0001 of the best counts as the best). In bfloat16 and float16, 16 tokens are equal, and so are
the logits of a prompt, within the error that rounding causes in transformers itself. With
experts, nine of ten tokens are equal: rounding also decides between two experts with almost
equal scores, here as in transformers.

- whole prompts, chunked prompts: five prompts of 1 to 130 tokens, run at once, each in one
  chunk, or in several
- odd blocks: with blocks of 5 tokens, and chunk sizes that do not match them
- shared prefixes: prompts that begin with the blocks of others
- windows: layers that see fewer tokens than the prompt has
- split: the prompt on one engine, the answer on another, with the KV transferred
"""
SETTINGS = """
## What configs may ask for

Each of these config settings was compared with transformers in float32: 24 greedy tokens after
up to eight prompts of 1 to 130 tokens, and the logits of the longest prompt. "Of old" marks the
spelling of older checkpoints.
"""
LONGROPE = """
LongRoPE's factors are chosen by `--max-model-len`, as in vLLM, and not by the length of each
sequence, as in transformers ([why](../decisions/0012-longrope-by-the-longest.md)). If
`--max-model-len` is not above the trained length, both agree up to that length; otherwise they
agree beyond it.
"""
ADAPTED_HEAD = """
## Through transformers' own code

Any other decoder in transformers runs through its own code over our attention, if it gives the
same output over KV blocks as alone. This is checked on two short prompts when a node starts
([why](../decisions/0022-transformers-code-for-other-models.md)). Such a model is slower than
one of our own families. `--model-impl transformers` runs our own families in this way, too.

These models were compared like the families above, in float32, in chunks: 64 greedy tokens
after five prompts of 1 to 75 tokens, and the logits of the longest prompt.
"""
REFUSED_HEAD = """
These models are refused, like all others that our own code does not run, and that keep more
state than keys and values, or use their own kind of attention:
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
    yield from _row("`model_type`", "sliding window")
    yield from _row("---", "---")
    for family, settings in ADAPTED.items():
        yield from _row(f"`{family}`", "yes" if "sliding_window" in settings else "has none")


def _refused() -> Iterator[str]:
    yield from _row("`model_type`", "error")
    yield from _row("---", "---")
    for family, (_, why) in STATEFUL.items():
        yield from _row(f"`{family}`", f'"{why} …"')


def _row(*cells: str) -> Iterator[str]:
    yield f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
