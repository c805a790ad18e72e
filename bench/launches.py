"""`python -m bench.launches`: what launching a step of few tokens costs the host, in two ways.

A minimal Llama with a given number of layers runs a step of a short prompt kernel by kernel,
and in pieces (engine/running/piecewise.py). This needs no GPU: launches of Triton's kernels
stop before the driver, and replaying a graph does nothing. What remains is the time of Python
and Triton, and of small products on the CPU in place of cuBLAS's launches.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rope_theta": 1e4,
    "eos_token_id": 0,
}
TOKENS, CACHED, BLOCK = 16, 112, 16
HOPPER, WARP = 90, 32
MS = 1e3


def main(words: Sequence[str]) -> None:
    """Print a line for each turn, with both ways."""
    parser = argparse.ArgumentParser(prog="python -m bench.launches")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--turns", type=int, default=3)
    chosen = parser.parse_args(words)
    torch.set_num_threads(1)
    _stop_at_the_driver()
    for singly_s, pieces_s in step_times(chosen.layers, chosen.steps, chosen.turns):
        ways = f"{singly_s * MS:.2f} ms kernel by kernel, {pieces_s * MS:.2f} ms in pieces"
        print(f"a step of {TOKENS} tokens, {chosen.layers} layers: {ways}")  # noqa: T201


def step_times(layers: int, steps: int, turns: int) -> Sequence[tuple[float, float]]:
    """Median seconds of a step, kernel by kernel and in pieces, in turn."""
    from engine.attention.paged import Span
    from engine.attention.plan import Plan

    runner = _runner(layers)
    tokens, blocks = range(1, 1 + TOKENS), range((CACHED + TOKENS) // BLOCK)
    plan = Plan(tokens, (), [Span(CACHED, TOKENS, blocks)], [TOKENS - 1])
    pieces, found = runner.pieces, list[tuple[float, float]]()
    for _ in range(turns):
        runner.pieces = None
        singly_s = _median_s(lambda: runner.run(plan), steps)
        runner.pieces = pieces
        found.append((singly_s, _median_s(lambda: runner.run(plan), steps)))
    return found


@torch.inference_mode()
def _median_s(step: Callable[[], object], steps: int) -> float:
    times = list[float]()
    for _ in range(steps):
        since = time.perf_counter()
        step()
        times.append(time.perf_counter() - since)
    return statistics.median(times)


def _runner(layers: int) -> Any:  # noqa: ANN401  engine.running.device's, after the environment
    """The runner of an engine on a CPU that is treated as a device."""
    from engine.loading import load_engine
    from engine.settings import EngineConfig

    with tempfile.TemporaryDirectory() as folder:
        config = json.dumps(CONFIG | {"num_hidden_layers": layers})
        (Path(folder) / "config.json").write_text(config)
        settings = EngineConfig(
            model=folder,
            load_format="dummy",
            dtype="bfloat16",
            block_size=BLOCK,
            max_num_seqs=4,
            max_num_batched_tokens=4 * TOKENS,
            kv_cache_memory_bytes=1 << 24,
            threads=1,
        )
        engine: Any = load_engine(settings, accelerator=_accelerator())
    return engine.stepper.runner


def _accelerator() -> Any:  # noqa: ANN401  engine.running.accelerator's, as above
    from engine.kernels.gpu.kernels import TritonKernels
    from engine.kernels.gpu.products import TritonProducts

    class Idle:
        """See Accelerator and Recorder: graphs do nothing, and the host samples."""

        kernels, products, drawing = TritonKernels(), TritonProducts(), None

        def recorder(self) -> "Idle":
            return self

        def record(self, work: Callable[[], None]) -> Callable[[], None]:
            work()
            return _nothing

        def record_pieces(self, work: Callable[..., None]) -> list[Callable[[], None]]:
            pieces: list[Callable[[], None]] = [_nothing]
            work(lambda _: pieces.append(_nothing))
            return pieces

        def lend(self, tensor: Tensor) -> Tensor:
            return tensor

    return Idle()


def _nothing(*_: object, **__: object) -> None:
    return


def _stop_at_the_driver() -> None:
    """From now on, kernels in this process are compiled for Hopper and never launched."""
    os.environ["TRITON_INTERPRET"] = "0"  # before Triton is imported
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import CompiledKernel

    class Driver:
        """The part of a driver that Triton uses."""

        def get_current_target(self) -> object:
            return GPUTarget("cuda", HOPPER, WARP)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, _device: int) -> int:
            return 0

    triton.runtime.driver.set_active(Driver())
    CompiledKernel.run = property(lambda _: _nothing)
    CompiledKernel._init_handles = _nothing
    CompiledKernel.launch_metadata = _nothing


if __name__ == "__main__":
    main(sys.argv[1:])
