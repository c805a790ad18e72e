"""The room loads in no time: no tensors, no tokenizers, and HTTP in one module only."""

import subprocess
import sys
from pathlib import Path

root = Path(__file__).parents[2]
HEAVY = ["torch", "transformers", "tokenizers", "jinja2", "quart", "zmq", "aiohttp"]


def test_only_the_routes_know_http_and_nobody_knows_tensors() -> None:
    files = [file.relative_to(root).with_suffix("") for file in (root / "api").rglob("*.py")]
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    names.remove("api.routes")
    code = f"import sys, {', '.join(names)}; assert not {{*sys.modules}}.intersection({HEAVY})"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
