"""Which kinds of kernels an engine's steps launch, and which its start did not: none are run.

Triton compiles a kernel for each kind of launch: for the types of its arguments, for the
values of its constants, for whole numbers that are 1 or divisible by 16, for aligned pointers.
Here an engine is opened on a CPU that is taken for a device, in a process that does not
interpret kernels, and each launch is only named, as Triton names what it compiles. What tokens
come out means nothing.

    python -m tests.fakes.launches FOLDER '{"max_num_batched_tokens": 300}'
"""

import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kernels.ahead import Hopper, compiling

if TYPE_CHECKING:
    from engine.torch_engine import TorchEngine

REQUESTS = 24
WISHES: Sequence[dict[str, Any]] = (
    {},
    {"temperature": 0.0},
    {"top_k": 5, "top_p": 0.9, "min_p": 0.01},
    {"top_p": 0.95, "temperature": 1.5},
    {"logprobs": 3},
    {"repetition_penalty": 1.5, "logprobs": 0},
    {"repetition_penalty": 1.1, "temperature": 0.5},
    {"logit_bias": ((3, 1.0),), "bad_words": ((5, 6), (7,))},
    {"allowed_token_ids": (1, 2, 3)},
    {"prompt_logprobs": 2},
)


def compiled_late(folder: Path, **settings: object) -> tuple[set[str], list[str]]:
    """The kernels that the start of an engine launches, and what steps are first to launch."""
    said = compiling("tests.fakes.launches", str(folder), json.dumps(settings))
    early, late = json.loads(said)
    return set(early), late


def named_only() -> dict[str, str]:
    """From now on no kernel runs: what is launched is named here, by its kind."""
    import triton
    from triton.runtime.jit import JITFunction, compute_cache_key

    triton.runtime.driver.set_active(Hopper())
    found = dict[str, str]()

    def name_only(kernel: JITFunction, *args: object, **kwargs: object) -> None:
        del kwargs["grid"], kwargs["warmup"]
        _, keys, _, _, binder = kernel.device_caches[0]
        bound, kind, options = binder(*args, debug=False, **kwargs)
        if kernel.fn.__name__ == "_draw":  # any token of the vocabulary will do
            bound["out"].zero_()
            bound["alive"].fill_(1)
        found.setdefault(kernel.fn.__name__ + str(compute_cache_key(keys, kind, options)), "")

    JITFunction.run = name_only
    return found


def _main(folder: str, settings: Mapping[str, object]) -> None:
    found = named_only()
    engine = _opened(folder, settings)
    early = set(found)
    _run(engine, random.Random(0))
    late = sorted(set(found) - early)
    print(json.dumps([sorted({one.partition("[")[0] for one in early}), late]))  # noqa: T201


def _opened(folder: str, settings: Mapping[str, object]) -> "TorchEngine":
    from engine.kernels.gpu.kernels import TritonKernels
    from engine.kernels.gpu.products import TritonProducts
    from engine.kernels.gpu.sampling.adjusting import adjust, apply_bitmasks
    from engine.kernels.gpu.sampling.choosing import choose
    from engine.kernels.gpu.sampling.token_logprobs import gather_logprobs
    from engine.kernels.sampling import SamplingKernels
    from tests.fakes.device import FakeAccelerator, on_device

    accelerator = FakeAccelerator(TritonKernels(), draws=True, products=TritonProducts())
    accelerator.drawing = SamplingKernels(choose, adjust, apply_bitmasks, gather_logprobs)
    engine = on_device(Path(folder), accelerator, **{"dtype": "bfloat16", **settings})
    engine.sampler.kernels = True
    engine.sampler.warm(engine.memory.block_rows.device)
    return engine


def _run(engine: "TorchEngine", dice: random.Random) -> None:
    """Requests of all lengths, which ask for anything, and come at any time."""
    from engine.request import Request, RequestId, Sampling

    longest = engine.info.max_model_len
    coming = [
        Request(
            RequestId(str(number)),
            tuple(dice.randrange(engine.decoder.config.vocab_size) for _ in range(length)),
            Sampling(max_tokens=dice.randint(1, 12), ignore_eos=True, **dice.choice(WISHES)),
        )
        for number, length in enumerate(
            dice.choice((1, 2, 5, 16, 40, longest // 2, longest - 20)) for _ in range(REQUESTS)
        )
    ]
    while coming or engine.load.waiting or engine.load.running:
        if coming and dice.random() < 0.5:
            engine.generate(coming.pop())
        engine.schedule()
        engine.step()


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
