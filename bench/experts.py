"""`python -m bench.experts`: a mixture of experts, compared with an equally active dense model.

The dense model's MLP is as wide as all experts of one token together. Both run in turns, in one
process, on one thread; medians are printed.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from bench.checkpoint import INITIALIZER_RANGE, Shape, write_checkpoint
from engine.checkpoints.checkpoint import WEIGHTS
from engine.loading import load_engine
from engine.request import Request, RequestId, Sampling
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine

EXPERTS, TOP_K = 8, 2
PROMPT, STEPS, RUNS = 256, 40, 15
BATCHES = (1, 4, 16)
MS = 1e3


def main() -> None:
    """Print the cost of a token in each model."""
    with tempfile.TemporaryDirectory() as folder:
        dense, mixture = Path(folder) / "dense", Path(folder) / "mixture"
        for path in (dense, mixture):
            path.mkdir()
            write_checkpoint(path, Shape(), dtype=torch.bfloat16)
        _split_into_experts(mixture)
        engines = [_engine(path) for path in (dense, mixture)]
    prompts = [[_prompt_s(engine) for engine in engines] for _ in range(RUNS)]
    _say(
        f"prompt of {PROMPT}", [_median(times) / PROMPT for times in zip(*prompts, strict=True)]
    )
    for batch in BATCHES:
        steps = [[_step_s(engine, batch) for engine in engines] for _ in range(RUNS)]
        per_token = [_median(times) / batch for times in zip(*steps, strict=True)]
        _say(f"decode step of {batch}", per_token)


def _split_into_experts(folder: Path) -> None:
    """Split the MLPs into experts, with as many weights per token, EXPERTS / TOP_K as many in
    total.
    """
    shape, file = Shape(), folder / WEIGHTS
    wide, hidden = shape.intermediate_size // TOP_K, shape.hidden_size
    weights = {name: one for name, one in load_file(file).items() if ".mlp." not in name}
    for layer in range(shape.num_hidden_layers):
        at = f"model.layers.{layer}.block_sparse_moe."
        weights[f"{at}gate.weight"] = _random(EXPERTS, hidden)
        for expert in range(EXPERTS):
            weights[f"{at}experts.{expert}.w1.weight"] = _random(wide, hidden)
            weights[f"{at}experts.{expert}.w3.weight"] = _random(wide, hidden)
            weights[f"{at}experts.{expert}.w2.weight"] = _random(hidden, wide)
    save_file(weights, file, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text()) | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "intermediate_size": wide,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
    }
    (folder / "config.json").write_text(json.dumps(config))


def _random(*shape: int) -> torch.Tensor:
    return (torch.randn(shape) * INITIALIZER_RANGE).bfloat16()


def _engine(folder: Path) -> TorchEngine:
    return load_engine(EngineConfig(model=str(folder), threads=1, enable_prefix_caching=False))


def _prompt_s(engine: TorchEngine) -> float:
    """Seconds from submission to the first token."""
    engine.generate(_request(1))
    since = time.perf_counter()
    _finish(engine)
    return time.perf_counter() - since


def _step_s(engine: TorchEngine, batch: int) -> float:
    """Median seconds of a step in which all sequences decode."""
    for _ in range(batch):
        engine.generate(_request(STEPS + batch))
    times = list[float]()
    while engine.load.running or engine.load.waiting:
        engine.schedule()
        since = time.perf_counter()
        result = engine.step()
        if result.num_tokens == len(result.sampled) == batch:
            times.append(time.perf_counter() - since)
    return statistics.median(times)


def _finish(engine: TorchEngine) -> None:
    while engine.load.running or engine.load.waiting:
        engine.schedule()
        engine.step()


def _request(answer: int) -> Request:
    prompt = tuple(random.randrange(1, Shape().vocab_size) for _ in range(PROMPT))
    name = RequestId(f"{random.getrandbits(64):x}")
    return Request(name, prompt, Sampling(answer, temperature=0, ignore_eos=True))


def _median(times: tuple[float, ...]) -> float:
    return statistics.median(times)


def _say(what: str, per_token: list[float]) -> None:
    dense, mixture = (one * MS for one in per_token)
    sys.stdout.write(
        f"{what}: {dense:.4f} ms per token dense, {mixture:.4f} ms with experts, "
        f"{mixture / dense:.2f} times as much\n"
    )


if __name__ == "__main__":
    main()
