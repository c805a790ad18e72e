"""Names on the Hugging Face hub: one that nobody knows is refused at once, one in the cache is
loaded from there.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from api.text.tokenizing import load_text_codec

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "deploy" / "demo" / "model"
CLOSED = "http://127.0.0.1:9"
NAME, REVISION = "nobody/nothing", "0123abc"
SMALL = {file.name for file in DEMO.iterdir() if file.suffix in {".json", ".jinja"}}
LOAD = (
    "import sys; from api.defaults import load_defaults; "
    "from api.pooling.model_config import load_pooling; "
    "from api.text.tokenizing import load_text_codec; "
    f"load_defaults('auto', '{NAME}'); load_pooling('{NAME}'); "
    f"print(load_text_codec('{NAME}').decode([*map(int, sys.argv[1:])])); "
    "assert 'torch' not in sys.modules"
)
OPEN = (
    "from engine.checkpoints.checkpoint import open_checkpoint; "
    f"print(len(open_checkpoint('{NAME}').weight_files))"
)


def hub(cache: Path, offline: str = "0", url: str = CLOSED) -> dict[str, str]:
    """An environment with this cache, and the hub at a URL; it cannot be reached by default."""
    hub = {"HF_ENDPOINT": url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": offline}
    return {**os.environ, "NO_PROXY": "127.0.0.1", **hub}


def ran(code: str, *args: str, env: dict[str, str]) -> tuple[int, str, str]:
    """The exit status of a process that runs this code, what it printed, and its log."""
    command = [sys.executable, "-c", code, *args]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    return ended.returncode, ended.stdout.strip(), ended.stderr


def cached(cache: Path) -> Path:
    """The folder in the cache with the bundled model under the name."""
    folder = cache / "models--nobody--nothing"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION)
    return Path(shutil.copytree(DEMO, folder / "snapshots" / REVISION))


@pytest.mark.parametrize("offline", ["0", "1"])
def test_one_that_is_not_to_be_had_is_asked_for_once(tmp_path: Path, offline: str) -> None:
    """And not again and again, file by file, for half a minute."""
    status, _, log = ran(LOAD, env=hub(tmp_path, offline))
    assert status == 1
    assert f"OSError: no tokenizer is to be had from {NAME}" in log
    assert "Retry" not in log


@pytest.mark.parametrize("offline", ["0", "1"])
def test_one_in_the_cache_is_loaded_as_a_folder_is(tmp_path: Path, offline: str) -> None:
    """Without the hub, which is asked once for all files, and without torch."""
    cached(tmp_path)
    tokens = load_text_codec(DEMO).encode("What is a node?")
    status, said, log = ran(LOAD, *map(str, tokens), env=hub(tmp_path, offline))
    assert status == 0, log
    assert said == "What is a node?"
    assert "Retry" not in log


@pytest.fixture
def url() -> Iterator[str]:
    """A hub on this machine, which has the bundled model under the name."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


class Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that a download takes, over the bundled model's folder."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its name there
        """Log nothing."""

    def do_HEAD(self) -> None:
        self.answer(only_head=True)

    def do_GET(self) -> None:
        self.answer()

    def answer(self, *, only_head: bool = False) -> None:
        """A model's revision, the list of its files, or one of them."""
        path, _, _ = self.path.partition("?")
        if path == f"/api/models/{NAME}/revision/main":
            body = json.dumps({"id": NAME, "sha": REVISION}).encode()
        elif path == f"/api/models/{NAME}/tree/{REVISION}":
            body = json.dumps([described(file) for file in sorted(DEMO.iterdir())]).encode()
        else:
            body = (DEMO / path.removeprefix(f"/{NAME}/resolve/{REVISION}/")).read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Repo-Commit", REVISION)
        self.send_header("ETag", f'"{sha256(body).hexdigest()}"')
        self.end_headers()
        if not only_head:
            self.wfile.write(body)


def described(file: Path) -> dict[str, object]:
    """A file as the hub lists it."""
    digest = sha256(file.read_bytes()).hexdigest()
    return {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": digest}


def test_text_needs_the_small_files_and_an_engine_the_weights(tmp_path: Path, url: str) -> None:
    """What is in the cache then is enough without the hub."""
    tokens = load_text_codec(DEMO).encode("What is a node?")
    reached, gone = hub(tmp_path, url=url), hub(tmp_path)
    files = tmp_path / "models--nobody--nothing" / "snapshots" / REVISION
    for env in (reached, gone):
        status, said, log = ran(LOAD, *map(str, tokens), env=env)
        assert (status, said) == (0, "What is a node?"), log
        assert {file.name for file in files.iterdir()} == SMALL
    status, _, log = ran(OPEN, env=gone)
    assert status == 1
    assert "hub cannot be reached, and the cache lacks some files" in log
    assert "has no safetensors files" in log
    for env in (reached, gone):
        status, said, log = ran(OPEN, env=env)
        assert (status, said) == (0, "1"), log
