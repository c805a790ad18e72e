"""Opens an engine's device: its kernels, its memory budget, and a runner for batches."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from engine.attention.kv_memory import KvMemory
from engine.errors import UnusableDevice
from engine.models.decoder import Decoder
from engine.models.eagle_head import EagleHead
from engine.models.experts import LatentExperts, LoopedExperts, SparseMlp
from engine.models.experts_beside import DenseAndExperts, RoutedStream
from engine.models.layer import Mlp
from engine.models.model import Model
from engine.models.prediction_head import PredictionHead
from engine.models.tensor_parallel import ParallelMlp
from engine.running.accelerator import Accelerator, open_accelerator
from engine.running.device import DeviceRunner
from engine.running.kv_budget import FLAG, DeviceMemoryBudget, SizedModel
from engine.running.replaying import host_runner
from engine.running.runner import Runner, copying_states
from engine.scheduling.sequence_manager import Limits
from engine.settings import EngineConfig
from engine.sharding.group import RankGroup

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenDevice:
    """A device with its own kernels; without a `budget` the KV cache is bounded in bytes."""

    accelerator: Accelerator
    budget: DeviceMemoryBudget | None
    eager: bool

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        device: str,
        accelerator: Accelerator | None = None,
        transfer_bytes: int = 0,
    ) -> "OpenDevice | None":
        """Open the device, before anything is loaded; None if torch alone runs there.

        `accelerator` is used instead of the one that `device` names; `transfer_bytes` of our
        share are left for the KV connector. Raises UnusableDevice.
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
        budget = (
            None if bounded else DeviceMemoryBudget.begin(accelerator, share, transfer_bytes)
        )
        return cls(accelerator, budget, config.enforce_eager)

    def num_blocks(self, models: Sequence[SizedModel]) -> int | None:
        """See DeviceMemoryBudget; None without one."""
        if self.budget is None:
            return None
        return self.budget.num_blocks(models, graphs=not self.eager)


@dataclass(frozen=True, slots=True)
class RunnerOpener:
    """Opens what runs the models of one engine or rank, on an open device or else on a CPU.

    `eager`: nothing is captured or replayed. On a CPU, steps of several ranks are not replayed
    either: their kernels alternate with sums.
    """

    opened: OpenDevice | None
    limits: Limits
    group: RankGroup | None
    eager: bool

    def open(self, model: Model, memory: KvMemory, behind: Runner | None = None) -> Runner:
        """A runner with compiled kernels and captured graphs; called before KV memory is used.

        Its sources (see Plan) are its own draws, or on a device those of the runner that it
        runs `behind`. All ranks of a `group` must do this at the same time: each batch has
        all-reduces.
        """
        if self.opened is None:
            runner = host_runner(model, memory, eager=self.eager or self.group is not None)
            return copying_states(runner, memory)
        accelerator = self.opened.accelerator
        drawn = behind.drawn if isinstance(behind, DeviceRunner) else None
        runner = DeviceRunner(model, memory, accelerator, self.limits, self.group, drawn)
        runner.warm()
        if self.eager:
            log.info("graphs: none, as --enforce-eager demands")
        elif not capturable(model):
            log.warning("graphs: none, as this model's code waits for the device")
        else:
            runner.capture(accelerator.recorder())
        return copying_states(runner, memory)


def capturable(model: Model) -> bool:
    """Whether a forward pass never waits for the device: its launches depend on shapes alone.

    Looped experts read back which of them were chosen, and other modelling code is unknown.
    """
    if isinstance(model, EagleHead):
        return True
    if isinstance(model, PredictionHead):
        return not _asks(model.layer.mlp)
    return isinstance(model, Decoder) and not any(_asks(layer.mlp) for layer in model.layers)


def _asks(mlp: Mlp | None) -> bool:
    mlp = mlp.routed if isinstance(mlp, DenseAndExperts) else mlp
    ours = mlp.ours if isinstance(mlp, ParallelMlp) else mlp
    experts = ours.experts if isinstance(ours, SparseMlp | RoutedStream) else None
    experts = experts.experts if isinstance(experts, LatentExperts) else experts
    return isinstance(experts, LoopedExperts)
