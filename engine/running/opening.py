"""What of a device is opened with an engine: kernels, memory, and a way to run batches."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from engine.attention.kv_memory import KvMemory
from engine.errors import UnusableDevice
from engine.models.decoder import Decoder, Mlp
from engine.models.experts import LoopedExperts, SparseMlp
from engine.models.model import Model
from engine.models.spread import SpreadMlp
from engine.running.accelerator import Accelerator, open_accelerator
from engine.running.device import DeviceRunner
from engine.running.kv_room import FLAG, DeviceRoom, tell
from engine.scheduling.sequence_manager import Limits
from engine.settings import EngineConfig
from engine.sharding.group import Group

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A device with kernels of its own; `room` None: KV is bounded in bytes."""

    accelerator: Accelerator
    room: DeviceRoom | None
    eager: bool

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        device: str,
        accelerator: Accelerator | None = None,
        beside_bytes: int = 0,
    ) -> "OpenDevice | None":
        """Before anything is loaded. None: torch alone runs there, as on a CPU.

        `accelerator` instead of the one that `device` names; `beside_bytes` of our share of it
        are for others of this process. Raises UnusableDevice.
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
        room = None if bounded else DeviceRoom.begin(accelerator, share, beside_bytes)
        return cls(accelerator, room, config.enforce_eager)

    def num_blocks(
        self, model: Model, memory_of: Callable[[int], KvMemory], limits: Limits
    ) -> int | None:
        """See DeviceRoom; None without one."""
        if self.room is None:
            return None
        return self.room.num_blocks(model, memory_of, limits, graphs=not self.eager)

    def runner(
        self, model: Model, memory: KvMemory, limits: Limits, group: Group | None
    ) -> DeviceRunner:
        """With all it launches compiled, and its graphs; before anything is in KV memory.

        All ranks of a `group` at the same time: each batch has its sums with the others.
        """
        tell(memory.num_blocks, memory.block_size, limits.max_model_len or 1)
        runner = DeviceRunner(model, memory, self.accelerator, limits, group)
        runner.warm()
        if self.eager:
            log.info("graphs: none, as --enforce-eager demands")
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
    return isinstance(model, Decoder) and not any(_asks(layer.mlp) for layer in model.layers)


def _asks(mlp: Mlp) -> bool:
    ours = mlp.ours if isinstance(mlp, SpreadMlp) else mlp
    return isinstance(ours, SparseMlp) and isinstance(ours.experts, LoopedExperts)
