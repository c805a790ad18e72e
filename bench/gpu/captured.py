"""Captures many launches as one CUDA graph, to measure the device's time for all of them."""

import torch

from bench.gpu.row import Run

WARM_UPS = 2  # kernels are compiled, libraries allocate their workspaces


def captured(run: Run, device: torch.device) -> Run:
    """The replay of `run`'s graph; on a CPU `run` itself."""
    if device.type != "cuda":
        return run
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            run()
    torch.cuda.current_stream(device).wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream):
        run()
    return graph.replay
