"""Many launches as one CUDA graph, where what is asked is the device's time of all of them."""

import torch

from bench.gpu.row import Run

WARM_UPS = 2  # kernels are compiled, libraries take their workspaces


def captured(run: Run, device: torch.device) -> Run:
    """Its replay; on a CPU `run` itself."""
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
