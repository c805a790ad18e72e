"""How much KV transfers slow down the steps of an engine in the same process."""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.transfer.figures import MIB
from bench.transfer.pair import TransferPair
from bench.transfer.source import KINDS, Kind

MOVED = 64 * MIB
BATCH, CONTEXT, STEPS = 8, 128, 200


def measure(pair: TransferPair) -> Iterator[tuple[str, float]]:
    """What runs beside it, and the median seconds of a step of 8 sequences on one thread.

    The model is small, so that a step is many calls, each of which needs the GIL.
    """
    import torch  # slow to import, and not needed by other measurements

    from bench.checkpoint import write_checkpoint
    from bench.engine.ours import OurEngine
    from bench.engine.work import SHAPES
    from engine.settings import EngineConfig

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), SHAPES["tiny"], dtype=torch.bfloat16)
        settings = EngineConfig(model=folder, threads=1)
        ours = OurEngine.load(settings, SHAPES["tiny"], BATCH, CONTEXT + STEPS + 1)
        ours.step_s(BATCH, CONTEXT, STEPS)
        yield "nothing", ours.step_s(BATCH, CONTEXT, STEPS)
        with pair.copying():
            yield "memcpy in another process", ours.step_s(BATCH, CONTEXT, STEPS)
        for kind in KINDS:
            with _moving(pair, kind):
                yield f"hand-overs by {kind}", ours.step_s(BATCH, CONTEXT, STEPS)


@contextmanager
def _moving(pair: TransferPair, kind: Kind) -> Iterator[None]:
    """Within this context a thread does one hand-over after the other."""
    over = threading.Event()
    blocks = list(range(min(MOVED, pair.memory.num_bytes) // pair.memory.block_bytes))

    def move() -> None:
        while not over.is_set():
            pair.hand_over(kind, blocks, blocks)

    thread = threading.Thread(target=move, name="mover")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
