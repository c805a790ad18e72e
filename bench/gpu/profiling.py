"""Which kernels a step launches, and how long each works, by torch's profiler.

The profiler slows a step down, so a row's times do not come from here. If all kernels together
work for less time than the device is busy, the rest is between them: a launch in a graph has to
wait for the one before it, which costs a microsecond or two each time.
"""

from collections.abc import Mapping, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.row import Run

PROFILED_RUNS = 3
LONGEST_NAME = 120
US = 1e-6
Kernels = Mapping[str, Sequence[float]]
"""By name: launches in one call, and their total seconds."""


def kernels_of(run: Run, device: torch.device) -> Kernels:
    """The kernels of some calls, the longest first; on a CPU, torch's operations."""
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        for _ in range(PROFILED_RUNS):
            run()
        if on_gpu:
            torch.cuda.synchronize(device)
    found = dict[str, tuple[float, float]]()
    for one in seen.key_averages():
        took = one.self_device_time_total if on_gpu else one.self_cpu_time_total
        calls, seconds = found.get(one.key[:LONGEST_NAME], (0.0, 0.0))
        if took > 0:
            found[one.key[:LONGEST_NAME]] = (
                calls + one.count / PROFILED_RUNS,
                seconds + took * US / PROFILED_RUNS,
            )
    return dict(sorted(found.items(), key=lambda kernel: -kernel[1][1]))
