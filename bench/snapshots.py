"""`python -m bench.snapshots [PROMPT]`: first token of a prompt whose model keeps a state.

Of each run the prompt is new, with copies of its state made for others (a step more) and
without, and then comes its next turn, which begins behind such a copy. One engine on one thread
with made-up weights: widths and states of a layer are those of Qwen3.5 0.8B, of which it has
eight layers and a small vocabulary. The ways take turns. Then a prompt is answered with
`ANSWER` tokens: how long decode steps take that copy a state, and those that do not, and how
long the next turn does behind the answer, with and without such copies.
"""

import json
import statistics
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import NamedTuple

import torch

from engine.loading import load_engine
from engine.request import Request, RequestId, Sampling
from engine.scheduling.sequence import Sequence
from engine.scheduling.snapshots import Snapshots
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine

PROMPT, TURN, RUNS = 1024, 64, 5
ANSWER, ANSWERS = 600, 4
VOCABULARY, MS = 4096, 1e3
CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
    },
    "tie_word_embeddings": True,
    "eos_token_id": 0,
    "vocab_size": VOCABULARY,
}
ids = count()


class First(NamedTuple):
    """Seconds to the first token, and tokens of the prompt that were not computed."""

    seconds: float
    cached: int


class Steps(NamedTuple):
    """Seconds of decode steps that copy no state, and of those that do."""

    plain: list[float]
    copying: list[float]


def main() -> None:
    """Print a table."""
    length = int(sys.argv[1]) if sys.argv[1:] else PROMPT
    engine = _engine(length + ANSWER + TURN)
    kv = engine.scheduler.sequences.kv
    snapshots = kv.snapshots
    assert snapshots is not None, "a model with states, and a prefix cache"
    _run(engine, length, 0, None)
    ways: dict[str, list[First]] = {}
    for seed in range(1, 1 + RUNS):
        alone = _run(engine, length, 2 * seed, None)
        ways.setdefault("no copies", []).append(alone)
        ways.setdefault("copies made", []).append(_run(engine, length, 2 * seed + 1, snapshots))
        again = _run(engine, length + TURN, 2 * seed + 1, snapshots)
        ways.setdefault("the next turn", []).append(again)
    sys.stdout.write(
        f"{length} tokens, a next turn of {TURN}; blocks of {engine.info.block_size} tokens, "
        f"a state of {kv.blocks_per_state * engine.kv_regions[0].block_bytes >> 10} KiB\n"
    )
    base = statistics.median(one.seconds for one in ways["no copies"])
    for way, firsts in ways.items():
        _tell(way, firsts, base)
    _tell_answers(engine, length)


def _engine(longest: int) -> TorchEngine:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        settings = EngineConfig(
            model=folder,
            load_format="dummy",
            dtype="bfloat16",
            max_model_len=longest + 2,
            max_num_batched_tokens=2 * longest,
            max_num_seqs=4,
            kv_cache_memory_bytes=1 << 29,
            threads=1,
        )
        return load_engine(settings)


def _run(engine: TorchEngine, length: int, seed: int, snapshots: Snapshots | None) -> First:
    engine.scheduler.sequences.kv.snapshots = snapshots
    return _first(engine, _new_tokens(length, seed))


def _new_tokens(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(1, VOCABULARY, (count,), generator=generator).tolist()
    return tokens


def _first(engine: TorchEngine, tokens: list[int]) -> First:
    asked = Request(RequestId(str(next(ids))), tuple(tokens), Sampling(1, temperature=0))
    begin, cached = time.perf_counter(), 0
    engine.generate(asked)
    while True:
        cached += sum(one.cached_tokens for one in engine.schedule())
        if engine.step().sampled:
            return First(time.perf_counter() - begin, cached)


def _tell_answers(engine: TorchEngine, length: int) -> None:
    snapshots = engine.scheduler.sequences.kv.snapshots
    assert snapshots is not None
    prepare, steps, firsts = snapshots.prepare_decoding, Steps([], []), dict[str, list[First]]()
    for seed in range(ANSWERS):
        copies = seed % 2 == 1
        snapshots.prepare_decoding = prepare if copies else _never  # type: ignore[method-assign]
        new = _new_tokens(length + TURN, 1000 + seed)
        tokens = _answer(engine, new[:length], steps) + new[length:]
        way = "copies in answers" if copies else "none in answers"
        firsts.setdefault(way, []).append(_first(engine, tokens))
    plain, copying = (statistics.median(some) * MS for some in steps)
    sys.stdout.write(
        f"decode steps: {plain:.2f} ms, {copying:.2f} ms with a copy "
        f"({len(steps.copying)} of {len(steps.plain) + len(steps.copying)})\n"
    )
    base = statistics.median(one.seconds for one in firsts["none in answers"])
    for way, some in firsts.items():
        _tell(way, some, base)


def _never(seq: Sequence, end: int, spare: int) -> None:
    """No copy is due in an answer."""


def _answer(engine: TorchEngine, prompt: list[int], steps: Steps) -> list[int]:
    sampling = Sampling(ANSWER, temperature=0, ignore_eos=True)
    engine.generate(Request(RequestId(str(next(ids))), tuple(prompt), sampling))
    tokens = list(prompt)
    while len(tokens) < len(prompt) + ANSWER:
        engine.schedule()
        (chunk,) = engine.scheduler.batch
        kept = steps.plain if chunk.seq.trail is None else steps.copying
        begin = time.perf_counter()
        sampled = engine.step().sampled
        if chunk.size == 1:
            kept.append(time.perf_counter() - begin)
        tokens += [token for one in sampled for token in one.tokens]
    return tokens


def _tell(way: str, firsts: list[First], base: float) -> None:
    seconds = [one.seconds for one in firsts]
    middle, low, high = statistics.median(seconds), min(seconds), max(seconds)
    sys.stdout.write(
        f"{way:17} {middle * MS:8.1f} ms ({low * MS:.1f} .. {high * MS:.1f}), "
        f"{firsts[0].cached:5} tokens reused, {middle / base:5.2f} times the time without\n"
    )


if __name__ == "__main__":
    main()
