"""How much device memory the KV cache gets: what the largest batch leaves of our share.

The share is --gpu-memory-utilization of the device's memory. From it come the weights, anything
else this process has on the device, the activations of the largest batch, what CUDA graphs
hold, and what is allocated later: batch staging buffers, buffers for KV transfer, and what
attention over the longest context takes.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from engine.attention.kv_memory import KvMemory
from engine.attention.paged import Span
from engine.attention.plan import Plan
from engine.errors import UnusableDevice
from engine.models.decoder import Decoder, adapters_of
from engine.models.model import Model
from engine.running.accelerator import Accelerator
from engine.running.device import DeviceRunner, staged_bytes
from engine.running.piecewise import piece_sizes
from engine.scheduling.sequence_manager import Limits

FLAG = "--gpu-memory-utilization"
DEFAULT_SHARE = 0.9
GIB = 1 << 30
LIKE_LOGITS = 2  # what sampling makes of the logits, as large as they are
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryNeeds:
    """Bytes beside weights and KV: activations of the largest batch, CUDA graphs, and what is
    allocated `later`, once KV is sized.
    """

    batch: int
    graphs: int
    later: int = 0


class SizedModel(NamedTuple):
    """A loaded model, what makes a KV memory of so many blocks for it, and its limits.

    Up to `verified` rows of a batch are drafts and the tokens that they are behind. A draft
    head has no `own_memory`: its KV is in that of the model.
    """

    model: Model
    memory_of: Callable[[int], KvMemory]
    limits: Limits
    verified: int = 0
    own_memory: bool = True


@dataclass(frozen=True, slots=True)
class DeviceMemoryBudget:
    """Our `share` of a device's memory, and what was `free` before anything of ours was there.

    `transfer_bytes` of the share are left to the KV connector.
    """

    accelerator: Accelerator
    share: int
    free: int
    transfer_bytes: int = 0

    @classmethod
    def begin(
        cls, accelerator: Accelerator, utilization: float | None, transfer_bytes: int = 0
    ) -> "DeviceMemoryBudget":
        """Before weights are loaded; raises UnusableDevice."""
        free, _ = accelerator.memory_bytes()
        return cls(accelerator, share_bytes(accelerator, utilization), free, transfer_bytes)

    def num_blocks(self, models: Sequence[SizedModel], *, graphs: bool) -> int:
        """How many KV blocks fit beside all else; raises UnusableDevice.

        The KV memory of each of the loaded `models` has so many; they run one at a time.
        """
        found = [self._needs_of(one, graphs=graphs) for one in models]
        needs = MemoryNeeds(
            max(one.batch for one, _ in found),
            sum(one.graphs for one, _ in found),
            self.transfer_bytes + sum(one.later for one, _ in found),
        )
        self.accelerator.empty_cache()
        left, _ = self.accelerator.memory_bytes()
        block_bytes = sum(size for _, size in found)
        return kv_bytes(self.share, self.free - left, needs) // block_bytes

    def _needs_of(self, sized: SizedModel, *, graphs: bool) -> tuple[MemoryNeeds, int]:
        """What one model needs, and the bytes of one of its KV blocks."""
        model, memory_of, limits, verified, own = sized
        like = memory_of(1)
        memory = memory_of(least_blocks(limits, like.block_size, like.state_blocks))
        needs = measure(model, self.accelerator, memory, limits, verified, graphs=graphs)
        adapters = adapters_of(model)
        count = 0 if adapters is None else adapters.count
        later = staged_bytes(limits, memory, count)
        if isinstance(model, Decoder):
            later += model.workspace_bytes(limits.max_model_len or limits.max_tokens)
        return replace(needs, later=later), memory.regions[0].block_bytes if own else 0


def share_bytes(accelerator: Accelerator, utilization: float | None) -> int:
    """Our share of the device, which has to be free when we start; raises UnusableDevice."""
    free, total = accelerator.memory_bytes()
    wanted = DEFAULT_SHARE if utilization is None else utilization
    share = int(total * wanted)
    if free < share:
        raise UnusableDevice(
            f"{FLAG} {wanted} of {total / GIB:.2f} GiB is more than the {free / GIB:.2f} GiB "
            "that are free: another process has the rest; nodes that share a device share "
            "this number, too"
        )
    return share


def kv_bytes(share: int, used: int, needs: MemoryNeeds) -> int:
    """What is left of our share, `used` being what of the device we have already."""
    left = share - used - needs.batch - needs.graphs - needs.later
    if left <= 0:
        raise UnusableDevice(
            f"{FLAG}: our share is {share / GIB:.2f} GiB; weights take {used / GIB:.2f} GiB, "
            f"the largest batch {needs.batch / GIB:.2f} GiB, graphs {needs.graphs / GIB:.2f} "
            f"GiB, numbers of batches and what moves KV {needs.later / GIB:.2f} GiB: "
            "nothing is left for KV"
        )
    return left


def log_kv_cache_size(blocks: int, block_size: int, max_len: int, states: int = 0) -> None:
    """Log the size of the KV cache in vLLM's words, which people grep for.

    A sequence has so many blocks for `states` beside its KV.
    """
    tokens = blocks * block_size
    log.info("GPU KV cache size: %s tokens", f"{tokens:,}")
    each = (-(-max_len // block_size) + states) * block_size
    log.info(
        "Maximum concurrency for %s tokens per request: %.2fx", f"{max_len:,}", tokens / each
    )


def measure(
    model: Model,
    accelerator: Accelerator,
    memory: KvMemory,
    limits: Limits,
    verified: int = 0,
    *,
    graphs: bool,
) -> MemoryNeeds:
    """Run the largest batches over a `memory` that is just large enough for them.

    `verified` as in SizedModel: there are logits of all those rows. If the model has LoRA
    adapters, all sequences have one. All graphs share one memory pool, which is as large as the
    largest of them needs.
    """
    runner = DeviceRunner(model, memory, accelerator, limits)
    adapter = None if adapters_of(model) is None else 0
    singles = _needs(accelerator, runner, _singles(memory, limits, adapter))
    prompts = _needs(accelerator, runner, _prompts(memory, limits, adapter))
    most = max(prompts, singles)
    if verified:
        drafts = _drafts(memory, limits, adapter, verified)
        most = max(most, _needs(accelerator, runner, drafts))
    if not graphs:
        return MemoryNeeds(most, 0)
    few = replace(limits, max_tokens=piece_sizes(limits.max_tokens)[-1])
    pieces = _needs(accelerator, runner, _prompts(memory, few, adapter))
    return MemoryNeeds(most, max(singles, pieces))


def least_blocks(limits: Limits, block_size: int, states: int = 0) -> int:
    """Of a memory for `measure`; a sequence has so many blocks for `states` beside its KV."""
    return -(-limits.max_tokens // block_size) + limits.max_sequences * (1 + states)


@torch.inference_mode()
def _needs(accelerator: Accelerator, runner: DeviceRunner, plan: Plan) -> int:
    """What the device has less for it, as torch keeps what it once took.

    Once before that, to load what is loaded at first use and stays.
    """
    free = 0
    for _ in range(2):
        accelerator.empty_cache()
        free, _ = accelerator.memory_bytes()
        ran = runner.run(plan)
        assert ran.logits is not None
        spare = [torch.empty_like(ran.logits) for _ in range(LIKE_LOGITS)]
        del ran, spare
    left, _ = accelerator.memory_bytes()
    accelerator.empty_cache()
    return free - left


def _prompts(memory: KvMemory, limits: Limits, adapter: int | None) -> Plan:
    """As many tokens as a batch has, of as many prompts as there are seats."""
    count = min(limits.max_sequences, max(1, limits.max_tokens // 2))
    length, more = divmod(limits.max_tokens, count)
    spans, first, ends = list[Span](), 0, list[int]()
    for index in range(count):
        ours = length + (index < more)
        blocks = range(first, first - (-ours // memory.block_size))
        state = range(blocks.stop, blocks.stop + memory.state_blocks)
        first = state.stop
        spans.append(Span(0, ours, blocks, adapter, state))
        ends.append((ends[-1] if ends else -1) + ours)
    return Plan([0] * limits.max_tokens, (), spans, ends)


def _drafts(memory: KvMemory, limits: Limits, adapter: int | None, rows: int) -> Plan:
    plan = _prompts(memory, replace(limits, max_tokens=rows), adapter)
    return plan._replace(picks=range(rows))


def _singles(memory: KvMemory, limits: Limits, adapter: int | None) -> Plan:
    count, each = limits.max_sequences, 1 + memory.state_blocks
    firsts = range(0, count * each, each)
    spans = [Span(0, 1, range(at, at + 1), adapter, range(at + 1, at + each)) for at in firsts]
    return Plan([0] * count, spans, (), range(count))
