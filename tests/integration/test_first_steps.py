"""A node's first answer does not wait for what could have been there before it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from tests.fakes.driver import load, requests, run
engine = load(Path(sys.argv[1]))
before = set(sys.modules)
run(engine, requests([(1, 2, 3)]))
print(*sorted(set(sys.modules) - before))
"""


def test_no_step_loads_modules(llama: Path) -> None:
    """Torch's compiler was loaded by the first decode step, for 1.5 s."""
    command = [sys.executable, "-c", SCRIPT, str(llama)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (ran.returncode, ran.stdout.split()) == (0, []), ran.stderr
