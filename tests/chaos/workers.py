"""The proxy under test: several workers behind one port, any of which may be killed."""

import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.cpu import children
from deploy.supervisor import SupervisedProcess
from tests.e2e.cluster import MODEL
from tests.soak.wires import sockets_of

ADMIN, CLUSTER = "secret", "signed"
STOP_S = 15.0
ESTABLISHED = "01"


@dataclass(slots=True)
class Workers:
    """A proxy of `count` processes; `cut` has the clients' ports of those that were killed."""

    folder: Path
    count: int
    show: Callable[[str, str], None]
    cut: set[int] = field(default_factory=set)
    child: SupervisedProcess = field(init=False)

    def __post_init__(self) -> None:
        """It does not run yet."""
        keys = {"PDSERVE_ADMIN_API_KEY": ADMIN, "PDSERVE_CLUSTER_KEY": CLUSTER}
        variables = os.environ | keys
        self.child = SupervisedProcess("proxy", self._arguments, variables, self.show, STOP_S)

    def pids(self) -> Sequence[int]:
        """Those that live."""
        parent = self.child.process
        return sorted(children(parent.pid)) if parent else []

    def kill_one(self, chance: random.Random) -> bool:
        """kill -9, of one that does not accept anybody meanwhile; never the last one."""
        pids = self.pids()
        if len(pids) < self.count:
            return False
        victim = chance.choice(pids)
        os.kill(victim, signal.SIGSTOP)
        self.cut |= peers_of(victim)
        os.kill(victim, signal.SIGKILL)
        return True

    def _arguments(self) -> list[str]:
        return [
            *(sys.executable, "-m", "proxy", "--model", str(self.folder)),
            *("--served-model-name", MODEL, "--port", "0", "--discovery-port", "0"),
            *("--workers", str(self.count), "--drain-timeout-s", "5"),
        ]


def peers_of(pid: int) -> set[int]:
    """The ports at the other ends of a process's connections."""
    inodes, found = set(sockets_of(pid)), set[int]()
    with suppress(OSError):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == ESTABLISHED and words[9] in inodes:
                found.add(int(words[2].partition(":")[2], 16))
    return found
