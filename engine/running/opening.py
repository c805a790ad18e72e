"""What of a device is opened with an engine: kernels, memory, and a way to run batches."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from engine.attention.kv_memory import KvMemory
from engine.errors import UnusableDevice
from engine.models.decoder import Decoder
from engine.models.experts import LoopedExperts, SparseMlp
from engine.models.model import Model
from engine.running.accelerator import Accelerator, open_accelerator
from engine.running.device import DeviceRunner
from engine.running.kv_room import FLAG, DeviceRoom, tell
from engine.scheduling.room import Limits
from engine.settings import EngineConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A device with kernels of its own; `room` None: KV is bounded in bytes."""

    accelerator: Accelerator
    room: DeviceRoom | None
    eager: bool
    several: bool = False  # ranks, which add up their parts in the middle of a step

    @classmethod
    def of(
        cls, config: EngineConfig, device: str, accelerator: Accelerator | None = None
    ) -> "OpenDevice | None":
        """Before anything is loaded. None: torch alone runs there, as on a CPU.

        `accelerator` instead of the one that `device` names. Raises UnusableDevice.
        """
        accelerator = accelerator or open_accelerator(device)
        share, bounded = config.gpu_memory_utilization, config.kv_cache_memory_bytes is not None
        if accelerator is None:
            if share is not None:
                raise UnusableDevice(
                    f"{FLAG} is for CUDA devices; with --device {device} "
                    "--kv-cache-memory-bytes bounds KV"
                )
            return None
        room = None if bounded else DeviceRoom.begin(accelerator, share)
        several = config.tensor_parallel_size > 1
        return cls(accelerator, room, config.enforce_eager, several)

    def num_blocks(
        self, model: Model, memory_of: Callable[[int], KvMemory], limits: Limits
    ) -> int | None:
        """See DeviceRoom; None without one."""
        if self.room is None:
            return None
        return self.room.num_blocks(
            model, memory_of, limits, graphs=not self.eager and not self.several
        )

    def runner(self, model: Model, memory: KvMemory, limits: Limits) -> DeviceRunner:
        """With its graphs, if it is to have any; before anything is in KV memory."""
        tell(memory.num_blocks, memory.block_size, limits.max_model_len or 1)
        runner = DeviceRunner(model, memory, self.accelerator, limits)
        if self.eager:
            log.info("graphs: none, as --enforce-eager demands")
        elif self.several:
            log.warning("graphs: none with --tensor-parallel-size")
        elif not capturable(model):
            log.warning("graphs: none, as this model's code waits for the device")
        else:
            runner.capture(self.accelerator.recorder())
        return runner


def capturable(model: Model) -> bool:
    """Whether a forward pass asks the device nothing: what is launched follows from shapes.

    Experts that multiply one by one ask which were chosen, and of code that is not ours
    nobody knows.
    """
    return isinstance(model, Decoder) and not any(
        isinstance(layer.mlp, SparseMlp) and isinstance(layer.mlp.experts, LoopedExperts)
        for layer in model.layers
    )
