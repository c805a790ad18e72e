"""NIXL's agents, and which of its builds is used: the one for torch's CUDA, or another.

The `nixl` package requires two builds, each with its own UCX; one is enough. A UCX built for a
different CUDA version than the process has cannot register device memory.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kv_transfer.errors import UnusableConnector

if TYPE_CHECKING:
    from types import ModuleType

    from nixl_cu12._api import nixl_agent

BUILDS = ("nixl_cu13", "nixl_cu12")


def build_for(cuda: str | None, installed: tuple[str, ...]) -> str:
    """The build for torch's CUDA version, such as `13.0`; ImportError if none is installed.

    Any build can transfer main memory, so one that does not match is better than none.
    """
    if not installed:
        raise ImportError("NIXL is not installed: pip install nixl-cu12, or nixl-cu13")
    wanted = f"nixl_cu{cuda.partition('.')[0]}" if cuda else None
    return wanted if wanted in installed else installed[-1]


def _load(part: str) -> Any:  # noqa: ANN401  bindings have no types
    installed = tuple(name for name in BUILDS if find_spec(name))
    return import_module(f"{build_for(_cuda(), installed)}.{part}")


def _cuda() -> str | None:
    """The CUDA version of the torch that this process has loaded, if it was built for CUDA."""
    torch: ModuleType | None = sys.modules.get("torch")
    said: str | None = torch.version.cuda if torch is not None else None
    return said


api = _load("_api")
bindings = _load("_bindings")
FAILURES = (
    bindings.nixlBackendError,
    bindings.nixlCancelledError,
    bindings.nixlInvalidParamError,
    bindings.nixlMismatchError,
    bindings.nixlNotAllowedError,
    bindings.nixlNotFoundError,
    bindings.nixlNotPostedError,
    bindings.nixlNotSupportedError,
    bindings.nixlRemoteDisconnectError,
    bindings.nixlRepostActiveError,
    bindings.nixlUnknownError,
)
"""The exceptions that NIXL raises."""
STILL_ACTIVE: type[Exception] = bindings.nixlRepostActiveError
"""What it raises for a transfer that has not ended, and cannot be stopped."""


def start_agent(name: str) -> "nixl_agent":
    """An agent over UCX, without NIXL's progress thread; raises UnusableConnector."""
    config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
    try:
        agent: nixl_agent = api.nixl_agent(name, config)
    except FAILURES as error:
        needs = "it needs /sys, and a transport that UCX_TLS allows"
        told = f"NIXL cannot start UCX here ({error!r}): {needs}"
        raise UnusableConnector(f"{told}; --kv-connector tcp does without") from error
    return agent
