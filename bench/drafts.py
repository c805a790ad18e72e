"""`python -m bench.drafts`: what draft tokens gain, and what they cost when they are rejected.

Two engines over the same weights, one of them with drafts, take turns. First, drafts are looked
up. A repetitive answer is sampled greedily from two tokens only. A random one is sampled at
temperature 1 from all tokens, so that nothing matches. A misleading one is sampled from sixteen
tokens: any two of them have occurred before, but what followed them predicts nothing.

Then a model drafts: the first layers of the model itself, whose other layers add little, so
that drafts are often right. How little decides how often (`FAINT`), as it does for a real pair.
Last, a model's own draft head does, which knows what the model does with the last token alone;
all layers add little, again.
"""

import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bench.checkpoint import Shape, write_checkpoint
from engine.checkpoints.checkpoint import WEIGHTS
from engine.loading import load_engine
from engine.request import Request, RequestId, Sampling
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine

RUNS, PROMPT, ANSWER = 7, 64, 128
BATCHES = (1, 4, 16)
ANSWERS = {
    "repeats": Sampling(ANSWER, temperature=0, ignore_eos=True, allowed_token_ids=(5, 6)),
    "does not": Sampling(ANSWER, temperature=1, ignore_eos=True),
    "misleads": Sampling(
        ANSWER,
        temperature=1,
        ignore_eos=True,
        allowed_token_ids=tuple(range(16)),
    ),
}
LARGE = Shape(1024, 2816, 24, 16, 4, 64, 8000)
DRAFT_LAYERS, FAINT = 3, 0.2
DRAFTED = {
    "greedy": Sampling(ANSWER, temperature=0, ignore_eos=True),
    "sampled": Sampling(ANSWER, temperature=0.8, top_p=0.95, ignore_eos=True),
}
CONFIG = "config.json"
MS = 1e3


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), Shape(), dtype=torch.bfloat16)
        plain, drafting = _engine(folder, None), _engine(folder, "{}")
    for kind, sampling in ANSWERS.items():
        for batch in BATCHES:
            _compare(kind, sampling, batch, plain, drafting)
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder, "large"), Path(folder, "small")
        write_pair(large, small)
        drafts = json.dumps({"model": str(small), "num_speculative_tokens": 4})
        plain, drafting = _engine(str(large), None), _engine(str(large), drafts)
    for kind, sampling in DRAFTED.items():
        for batch in BATCHES:
            _compare(kind, sampling, batch, plain, drafting)
    with tempfile.TemporaryDirectory() as folder:
        write_headed(Path(folder))
        plain, drafting = _engine(folder, None), _engine(folder, '{"method": "mtp"}')
    for kind, sampling in DRAFTED.items():
        for batch in BATCHES:
            _compare(kind, sampling, batch, plain, drafting)


def write_headed(folder: Path) -> None:
    """Write a model of LARGE with a draft head, in the layout of GLM-4.5 without experts."""
    layers, hidden = LARGE.num_hidden_layers, LARGE.hidden_size
    shape = replace(LARGE, num_hidden_layers=layers + 1)
    write_checkpoint(folder, shape, dtype=torch.bfloat16)
    weights = load_file(folder / WEIGHTS)
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.mul_(FAINT)
    words, ones = weights["model.embed_tokens.weight"], torch.ones(hidden).bfloat16()
    only_the_token = torch.cat((torch.eye(hidden), torch.zeros(hidden, hidden)), 1).bfloat16()
    head = {
        "eh_proj": only_the_token,
        "enorm": ones,
        "hnorm": ones.clone(),
        "embed_tokens": words.clone(),
        "shared_head.norm": weights["model.norm.weight"].clone(),
        "shared_head.head": weights["lm_head.weight"].clone(),
    }
    weights |= {f"model.layers.{layers}.{name}.weight": one for name, one in head.items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    config = json.loads((folder / CONFIG).read_text())
    config |= {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_hidden_layers": layers,
        "first_k_dense_replace": layers + 1,
        "num_nextn_predict_layers": 1,
    }
    (folder / CONFIG).write_text(json.dumps(config))


def write_pair(large: Path, small: Path) -> None:
    """Write a model of LARGE, and one of its first DRAFT_LAYERS layers."""
    for folder, layers in ((large, LARGE.num_hidden_layers), (small, DRAFT_LAYERS)):
        folder.mkdir()
        write_checkpoint(folder, replace(LARGE, num_hidden_layers=layers), dtype=torch.bfloat16)
    weights = load_file(large / WEIGHTS)
    for name, weight in weights.items():
        layer = name.removeprefix("model.layers.").partition(".")[0]
        adds = name.endswith(("o_proj.weight", "down_proj.weight"))
        if adds and int(layer) >= DRAFT_LAYERS:
            weight.mul_(FAINT)
    save_file(weights, large / WEIGHTS, metadata={"format": "pt"})
    same = {name: weights[name] for name in load_file(small / WEIGHTS)}
    save_file(same, small / WEIGHTS, metadata={"format": "pt"})


def _compare(
    kind: str, sampling: Sampling, batch: int, plain: TorchEngine, drafting: TorchEngine
) -> None:
    before = drafting.load
    times = [
        (_answer_s(plain, sampling, batch), _answer_s(drafting, sampling, batch))
        for _ in range(RUNS)
    ]
    load, (usual, drafted) = drafting.load, map(statistics.median, zip(*times, strict=True))
    tried = load.draft_tokens - before.draft_tokens
    true = load.accepted_tokens - before.accepted_tokens
    took = (
        f"{usual * MS:6.2f} ms a token, {drafted * MS:6.2f} with drafts, {drafted / usual:4.0%}"
    )
    _say(f"{batch:2} answers, each {kind:8}: {took}; {true} of {tried} drafts came true")


def _engine(folder: str, drafts: str | None) -> TorchEngine:
    settings = EngineConfig(
        model=folder, threads=1, enable_prefix_caching=False, speculative_config=drafts
    )
    return load_engine(settings)


def _answer_s(engine: TorchEngine, sampling: Sampling, batch: int) -> float:
    """CPU seconds for each token but the first of one answer, while a whole batch runs."""
    for number in range(batch):
        prompt = tuple(range(7 * number + 1, 7 * number + 1 + PROMPT))
        engine.generate(Request(RequestId(str(number)), prompt, sampling))
    while any(seq.pending > 1 for seq in engine.scheduler.sequences.known.values()):
        engine.schedule()
        engine.step()
    begin = time.process_time()
    while engine.load.running:
        engine.schedule()
        engine.step()
    return (time.process_time() - begin) / (ANSWER - 1)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
