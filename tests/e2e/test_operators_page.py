"""What docs/howto/operate-a-cluster.md tells operators to type does what it says."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.fakes.ports import free_ports

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "operate-a-cluster.md"
FENCE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
PATIENCE_S = 300.0
PORTS = (
    *("proxy --port", "proxy --discovery-port", "prefill --port", "prefill --kv-port"),
    *("decode --port", "decode --kv-port", "second --port", "second --kv-port"),
    *("by hand --port", "by hand --kv-port"),
)
SHIM = """\
#!/bin/bash
# As the page's command, on ports that are free; it returns when the process is ready, and the
# proxy has heard of a node that registers with it.
case "$1" in
{cases}
esac
log=$(mktemp -p .)
[[ "$1" == proxy ]] && log=proxy.log && : > $log
"{python}" -c 'from deploy.cli import main; main()' "$@" $more > $log 2>&1 &
node=$!  # what reads a log below changes $! itself
echo $node >> pids
grep -q -m1 " ready" <(tail -n +1 -f --pid=$node $log) || {{ cat $log >&2; exit 1; }}
if [[ "$* $more" == *" --proxy "* && "$* $more" =~ --port[[:space:]]([0-9]+) ]]; then
  joined=":${{BASH_REMATCH[1]}} .* joined"
  grep -q -m1 "$joined" <(tail -n +1 -f --pid=$node proxy.log) || {{ cat $log >&2; exit 1; }}
fi
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """As the repository looks after `make serve`; whatever was started there ends with it."""
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    yield tmp_path
    started = tmp_path / "pids"
    for pid in map(int, started.read_text().split()) if started.exists() else ():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_every_command_of_the_page_works_as_printed(folder: Path) -> None:
    port = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    write_shim(folder, port)
    by_hand = f"127.0.0.1:{port['by hand --port']}"
    node = ".venv/bin/pdserve decode --model deploy/demo/model --served-model-name demo"
    node += f" --empty-proxy --port {by_hand[10:]} --kv-port {port['by hand --kv-port']}"
    text = "\n".join([node, *FENCE.findall(PAGE.read_text())])
    ran = run_all(folder, in_our_ports(text, port, by_hand))
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    listed, added, removed, draining, looked, undrained, turning = answers
    assert sorted(node["role"] for node in listed["instances"]) == ["decode"] * 2 + ["prefill"]
    assert added["message"] == f"Added {by_hand} to decode_instances."
    assert removed["message"] == f"Removed {by_hand}."
    states = [said["state"] for said in (draining, looked, undrained)]
    assert states == ["draining", "draining", "ready"]
    assert turning["wanted_role"] == "decode"
    url = f"http://127.0.0.1:{port['proxy --port']}/v1/models"
    until = time.monotonic() + PATIENCE_S
    while status_of(url, "sk-web-2") != 200:  # the new key, within a second
        assert time.monotonic() < until
    assert status_of(url, "sk-web-1") == 401


def write_shim(folder: Path, port: dict[str, int]) -> None:
    """A `pdserve` that says which ports where the page's command leaves it to the defaults."""
    to_proxy = f"--proxy 127.0.0.1:{port['proxy --discovery-port']}"
    more = dict[str, str]()
    for command in ("proxy", "prefill", "decode"):
        flags = [name for name in port if name.startswith(f"{command} --")]
        more[command] = " ".join(f"{name.split()[1]} {port[name]}" for name in flags)
    more["prefill"] += f" {to_proxy}"
    more["decode"] += f" {to_proxy}"
    cases = [f'  {command}) more="{flags}" ;;' for command, flags in more.items()]
    given = f'  decode) case "$*" in *empty-proxy*) more="" ;; *--port*) more="{to_proxy}" ;;'
    cases[-1] = f'{given} *) more="{more["decode"]}" ;; esac ;;'
    shim = folder / ".venv" / "bin" / "pdserve"
    shim.write_text(SHIM.format(cases="\n".join(cases), python=sys.executable))
    shim.chmod(0o755)


def in_our_ports(text: str, port: dict[str, int], by_hand: str) -> str:
    """The page's own ports, and its node that is elsewhere, are others here."""
    ours = {
        "10.0.0.5:8200": by_hand,
        "127.0.0.1:8000": f"127.0.0.1:{port['proxy --port']}",
        "127.0.0.1:8100": f"127.0.0.1:{port['prefill --port']}",
        "127.0.0.1:8200": f"127.0.0.1:{port['decode --port']}",
        "--port 8201 --kv-port 22002": f"--port {port['second --port']} --kv-port "
        f"{port['second --kv-port']}",
    }
    for theirs, here in ours.items():
        assert theirs in text, theirs
        text = text.replace(theirs, here)
    return re.sub(r"^(curl .*)$", r"\1; echo", text, flags=re.MULTILINE)


def run_all(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """One after the other in one shell, which ends at the first that fails."""
    ran = subprocess.run(
        ["bash", "-e", "-c", text],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 0, ran.stderr
    return ran


def status_of(url: str, key: str) -> int:
    try:
        with urlopen(Request(url, headers={"Authorization": f"Bearer {key}"})) as answer:
            return int(answer.status)
    except HTTPError as refused:
        return refused.code
