"""`python -m bench.engine`: one engine alone, beside what this machine could do at most.

The floor of a prompt is its multiplications over the rate of a large matrix product; that of a
decode step is its bytes, weights and KV, over the rate of a large copy. Both rates are measured
in the same run, on as many threads.
"""

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bench.checkpoint import Shape, write_checkpoint
from engine.loading import load_engine
from engine.models.linear import Linear, PlainLinear, linear
from engine.request import Request, RequestId, Sampling
from engine.settings import EngineConfig
from engine.torch_engine import TorchEngine

RUNS = 30
STEPS = 60
PROMPT = 256
CHUNKS = (64, 128, 256, 512)
BATCHES = (1, 2, 4, 8)
SIDE = 2048
COPIED = 256 << 20
BYTES = torch.bfloat16.itemsize
MS, GIGA = 1e3, 1e9


@dataclass(frozen=True, slots=True)
class Work:
    """What a random Llama of some shape has to do, in multiplications and bytes."""

    shape: Shape

    @property
    def layer_weights(self) -> int:
        """Of all layers together."""
        one = self.shape
        attention = (2 * one.num_attention_heads + 2 * one.num_key_value_heads) * one.head_dim
        return one.num_hidden_layers * one.hidden_size * (attention + 3 * one.intermediate_size)

    @property
    def head_weights(self) -> int:
        """Of the last product, onto the vocabulary."""
        return self.shape.hidden_size * self.shape.vocab_size

    def prompt_flop(self, tokens: int) -> int:
        """All layers for all tokens, attention to those before, and one row of logits."""
        heads = self.shape.num_hidden_layers * self.shape.num_attention_heads
        attention = 2 * heads * self.shape.head_dim * tokens * tokens
        return 2 * self.layer_weights * tokens + attention + 2 * self.head_weights

    def step_bytes(self, sequences: int, tokens: int) -> int:
        """Every weight once, and the KV of every sequence."""
        kv = 2 * self.shape.num_hidden_layers * self.shape.num_key_value_heads
        read = sequences * tokens * kv * self.shape.head_dim
        return BYTES * (self.layer_weights + self.head_weights + read)


def main() -> None:
    """Print a table."""
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), Shape(), dtype=torch.bfloat16)
        engines = {chunk: _engine(folder, chunk) for chunk in CHUNKS}
    work, flops, rate = Work(Shape()), _flops(), _copy_rate()
    _say(f"one thread: {flops / GIGA:.0f} GFLOP/s multiplied, {rate / GIGA:.1f} GB/s copied")
    for length in (PROMPT, 2 * PROMPT):
        floor = work.prompt_flop(length) / flops
        for chunk, engine in engines.items():
            took = _prompt_s(engine, length)
            _say(f"prompt of {length} in chunks of {chunk:3}: {_beside(took, floor)}")
    for batch in BATCHES:
        plain, packed = (_products_s(make, batch) for make in (PlainLinear, linear))
        said = f"{packed * MS:.2f} ms packed, {plain * MS:.2f} ms plain"
        _say(f"products of a step of {batch}: {said}")
    for batch in BATCHES:
        times = list(_decode_s(engines[2 * PROMPT], batch))
        floor = work.step_bytes(batch, PROMPT + STEPS // 2) / rate
        _say(f"decode step of {batch}: {_beside(statistics.median(times), floor)}")


def _engine(folder: str, chunk: int) -> TorchEngine:
    settings = EngineConfig(
        model=folder, threads=1, enable_prefix_caching=False, max_num_batched_tokens=chunk
    )
    return load_engine(settings)


def _prompt_s(engine: TorchEngine, length: int) -> float:
    """Median seconds from submission to the first token."""
    return _median(lambda: _finish(engine, [_request(length, 1)]))


def _decode_s(engine: TorchEngine, batch: int) -> Iterator[float]:
    """Seconds of each step in which all sequences are past their prompts."""
    for _ in range(batch):
        engine.generate(_request(PROMPT, STEPS + batch))
    while engine.load.running or engine.load.waiting:
        engine.schedule()
        since = time.perf_counter()
        result = engine.step()
        if result.num_tokens == len(result.sampled) == batch:
            yield time.perf_counter() - since


def _products_s(make: Callable[[torch.Tensor], Linear], batch: int) -> float:
    """Median seconds of all products with a weight that one step has."""
    one, made = Shape(), list[tuple[Linear, torch.Tensor]]()
    heads, keys = one.num_attention_heads, one.num_key_value_heads
    layer = [
        ((heads + 2 * keys) * one.head_dim, one.hidden_size),
        (one.hidden_size, heads * one.head_dim),
        (2 * one.intermediate_size, one.hidden_size),
        (one.hidden_size, one.intermediate_size),
    ]
    for outputs, inputs in [*layer * one.num_hidden_layers, (one.vocab_size, one.hidden_size)]:
        weight, asked = torch.randn(outputs, inputs), torch.randn(batch, inputs)
        made.append((make(weight.bfloat16()), asked.bfloat16()))
    with torch.inference_mode():
        return _median(lambda: [product(asked) for product, asked in made])


def _finish(engine: TorchEngine, requests: Sequence[Request]) -> None:
    for request in requests:
        engine.generate(request)
    while engine.load.running or engine.load.waiting:
        engine.schedule()
        engine.step()


def _request(length: int, answer: int) -> Request:
    prompt = tuple(random.randrange(1, Shape().vocab_size) for _ in range(length))
    name = RequestId(f"{random.getrandbits(64):x}")
    return Request(name, prompt, Sampling(answer, temperature=0, ignore_eos=True))


def _flops() -> float:
    one = torch.randn(SIDE, SIDE).bfloat16()
    return 2 * SIDE**3 / _median(lambda: torch.mm(one, one))


def _copy_rate() -> float:
    """Bytes read per second; as many are written."""
    source = torch.ones(COPIED, dtype=torch.uint8)
    target = torch.empty_like(source)
    return COPIED / _median(lambda: target.copy_(source))


def _median(call: Callable[[], object]) -> float:
    times = list[float]()
    for _ in range(RUNS):
        since = time.perf_counter()
        call()
        times.append(time.perf_counter() - since)
    return statistics.median(times)


def _beside(took: float, floor: float) -> str:
    return f"{took * MS:6.2f} ms, floor {floor * MS:5.2f} ms, {floor / took:4.0%} of it reached"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
