"""Which kernels a step is made of, and how long each works: as torch's profiler sees it.

It slows a step down, so no time of a row comes from here. Where all kernels together work less
than the device is busy for, the rest is between them: a launch of a graph has to wait for the
one before it, which costs a microsecond or two each time.
"""

from collections.abc import Mapping, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from bench.gpu.row import Run

PROFILED_RUNS = 3
LONGEST_NAME = 120
US = 1e-6
Kernels = Mapping[str, Sequence[float]]
"""By name: how often in one call, and for how many seconds in all of that."""


def kernels_of(run: Run, device: torch.device) -> Kernels:
    """Of some calls of it, those that take longest first; operations of torch on a CPU."""
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
