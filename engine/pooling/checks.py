"""Refuses pooling requests that a model cannot serve. Pure."""

from engine.errors import UnsupportedTask
from engine.pooling.config import PoolingConfig
from engine.request import PoolingRequest


def check_task(request: PoolingRequest, config: PoolingConfig, hidden_size: int) -> None:
    """Raises UnsupportedTask for a task or a length that this model does not support."""
    if request.task not in config.tasks:
        can = " and ".join(config.tasks)
        raise UnsupportedTask(f"task {request.task} is not for this model, which does {can}")
    if request.dimensions is None:
        return
    if config.dimensions is None or not request.task.endswith("embed"):
        raise UnsupportedTask("dimensions: vectors of this model may not be cut", "dimensions")
    width = config.width(hidden_size)
    allowed = config.dimensions or range(1, width + 1)
    if request.dimensions not in allowed:
        said = ", ".join(map(str, config.dimensions)) or f"1 to {width}"
        reason = f"dimensions {request.dimensions} is not one of {said}"
        raise UnsupportedTask(reason, "dimensions")
