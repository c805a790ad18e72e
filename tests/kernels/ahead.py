"""Compiles kernels for Hopper where there is no GPU: what a wrapper launches is only compiled.

The interpreter takes what a compiler refuses: shapes that are no constants, types that change
in a loop. So each wrapper is called once more, in a process that does not interpret, with a
launch that goes as far as ptxas. Nothing runs.

    python -m tests.kernels.ahead engine.kernels.gpu.norms "rms_norm(torch.ones(3, 8), …)"
"""

import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import pytest
import triton

from tests.kernels.machine_code import Code, disassembled

ARCHITECTURE = 90
REPORT = re.compile(r"Used (\d+) registers|(\d+) bytes spill stores")
LONGEST_S = 300
SINCE = 3, 7
registers_of_latents = pytest.mark.skipif(
    tuple(map(int, triton.__version__.split(".")[:2])) < SINCE,
    reason="of a compiler before Triton 3.7, latents spill up to 64 bytes more",
)
"""Where attention over latents fills all registers, a few bytes are the compiler's choice."""


def compiled(module: str, *calls: str) -> dict[str, dict[str, int]]:
    """For each kernel that `calls` launch, with the names of `module` and torch: `registers`,
    `spilled` bytes, `shared` bytes, how often it `waits` for the launch before it, what it
    `loads_before` that and `brings` to L2, whether it `begins_early`, and what `Code` counts,
    the most of all its launches. Raises where one does not compile.
    """
    said = compiling("tests.kernels.ahead", module, *calls)
    found = defaultdict[str, dict[str, int]](dict)
    for line in said.splitlines():
        name, told = json.loads(line)
        most = found[name]
        found[name] = {key: max(most.get(key, 0), number) for key, number in told.items()}
    return dict(found)


def compiling(module: str, *words: str) -> str:
    """What a module of the tests says in a process that does not interpret kernels; raises
    AssertionError with the end of its errors where it fails.
    """
    ran = subprocess.run(
        [sys.executable, "-m", module, *words],
        env=dict(os.environ, TRITON_INTERPRET="0"),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    if ran.returncode:
        raise AssertionError(ran.stderr[-4000:])
    return ran.stdout


class Hopper:
    """As much of a driver as a compiler asks for."""

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", ARCHITECTURE, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> str:
        return "cpu"


def _main(module: str, *calls: str) -> None:
    import torch
    import triton
    from triton.runtime.jit import JITFunction

    triton.runtime.driver.set_active(Hopper())
    launch = JITFunction.run

    def compile_only(kernel: JITFunction, *args: object, **kwargs: object) -> None:
        made = launch(kernel, *args, **(kwargs | {"warmup": True}))
        told = _report(made.asm["ptx"]) | {
            "shared": made.metadata.shared,
            "begins_early": int(made.metadata.launch_pdl),
        }
        print(json.dumps([kernel.fn.__name__, told]))  # noqa: T201  it is what the parent reads

    JITFunction.run = compile_only
    names = {**vars(importlib.import_module(module)), "torch": torch}
    for call in calls:
        exec(call, dict(names))


def _report(ptx: str) -> dict[str, int]:
    """By ptxas, with the options that Triton gives it."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as place:
        source, out = Path(place, "kernel.ptx"), Path(place, "out")
        source.write_text(ptx)
        options = ["-v", "-lineinfo", "--regAllocOptLevel=2", f"--gpu-name=sm_{ARCHITECTURE}a"]
        ran = subprocess.run(
            [get_ptxas(ARCHITECTURE).path, *options, str(source), "-o", str(out)],
            capture_output=True,
            text=True,
            check=True,
        )
        code = Code(disassembled(out))
    found = REPORT.findall(ran.stderr)
    before, *behind = ptx.split("griddepcontrol.wait")
    return code.counts() | {
        "waits": len(behind),
        "loads_before": before.count("ld.global") if behind else 0,
        "brings": before.count("prefetch.global.L2"),
        "lets_begin": ptx.count("griddepcontrol.launch_dependents"),
        "registers": max(int(one or 0) for one, _ in found),
        "spilled": max(int(other or 0) for _, other in found),
    }


if __name__ == "__main__":
    _main(*sys.argv[1:])
