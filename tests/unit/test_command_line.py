"""What is typed is taken as it is meant, or refused by its name, and nothing slow is loaded."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from deploy.cli import app, parse
from deploy.config import UpConfig

ROOT = Path(__file__).parents[2]
HEAVY = ["torch", "transformers", "zmq", "aiohttp", "quart", "uvicorn"]
COMMANDS = [name for name in app if name[0] != "-"]
LOAD_NOTHING = f"""
import sys
from deploy.cli import main
try:
    main()
finally:
    assert not {{*sys.modules}}.intersection({HEAVY})
"""
FEW_FILES = """
import resource
from deploy.cli import main
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
try:
    main("--version")
finally:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == min(hard, 65_536) or hard == resource.RLIM_INFINITY
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pdserve.toml"


def up(*words: str, file: Path | None = None) -> UpConfig:
    _, bound = parse(["up", *words], file)
    config = bound.arguments.get("config", UpConfig())
    assert isinstance(config, UpConfig)
    return config


def test_a_flag_beats_a_variable_beats_the_file_beats_the_default(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert up().prefill == 1
    file.write_text("[up]\nprefill = 2\n[proxy]\nport = 1\n")
    assert up(file=file).prefill == 2
    monkeypatch.setenv("PDSERVE_PREFILL", "3")
    assert up(file=file).prefill == 3
    assert up("--prefill", "4", file=file).prefill == 4


def test_what_is_plural_has_a_form_everywhere(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text('[up]\napi_key = ["a", "b"]\n')
    assert up(file=file).api_key == ("a", "b")
    monkeypatch.setenv("PDSERVE_API_KEY", "c d")
    assert up(file=file).api_key == ("c", "d")
    assert up("--api-key", "e", "--api-key", "f", file=file).api_key == ("e", "f")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--prefil", "2"], "Unknown option: --prefil. Did you mean --prefill?"),
        (["upp"], 'Unknown command "upp". Did you mean "up"?'),
        (["up", "extra"], "extra"),
        (["up", "--prefill", "two"], 'Invalid value for --prefill: unable to convert "two"'),
        (["up", "--port", "8700.6"], '--port: unable to convert "8700.6" into int'),
        (["up", "--threads", "1.5"], '--threads: unable to convert "1.5" into int'),
        (["up", "--decode-ports", "1.5"], 'unable to convert "1.5" into int'),
        (["up", "--prefill", "-1"], "--prefill -1 has to be at least 0"),
        (["up", "--decode", "-1"], "--decode -1 has to be at least 0"),
        (["up", "--decode", "0", "--prefill", "0"], "must not both be 0"),
        (["up", "--port", "70000"], "--port 70000 is no port"),
        (["up", "--prefill-ports", "70000"], "--prefill-ports 70000 is no port"),
        (["up", "--prefill", "2", "--prefill-ports", "1"], "--prefill-ports has 1 entries"),
        (["up", "--dtype", "float64"], 'Invalid value "float64" for --dtype'),
        (["up", "--drain-timeout-s", "nan"], "--drain-timeout-s nan has to be at least 0"),
        (["up", "--ready-timeout-s", "-1"], "--ready-timeout-s -1.0 has to be at least 0"),
        (["up", "--drain-timeout-s", "inf"], "--drain-timeout-s inf has to be finite"),
        (["proxy", "--recovery-wait-s", "inf"], "--recovery-wait-s inf has to be finite"),
        (["proxy", "--tries", "0"], "--tries 0 has to be at least 1"),
        (["proxy", "--host", "bücher.de"], "no host; write it as xn--bcher-kva.de"),
        (
            ["decode", "--model", "m", "--proxy", "bücher.de:1"],
            "HOST:PORT; write it as xn--bcher-kva.de:1",
        ),
        (["bench", "--requests", "0"], "--requests 0 has to be at least 1"),
        (["bench", "--url", "http://h"], "--url wants --model"),
        (["status", "--url", "h:8000"], "--url h:8000 has to begin with http:// or https://"),
        (["up", "--cluster-key", ""], "--cluster-key must not be empty"),
        (["decode", "--model", ""], "--model must not be empty"),
        (["up", "--api-key", ""], "--api-key must not be empty"),
        (["up", "--api-key", "two words"], "--api-key must not contain spaces"),
        (["prefill"], "--model requires an argument"),
        (["decode", "--model", "m", "--kv-port", "-1"], "--kv-port -1 is no port"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_none_but_decode_nodes_is_a_cluster() -> None:
    """They compute their prompts themselves."""
    assert up("--prefill", "0").prefill == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[up]\nprefil = 2", 'Unknown option: "[prefil]" from {}. Did you mean --prefill?'),
        ('[up]\nprefill = "two"', 'for [prefill] from {}: unable to convert "two" into int'),
        ("[up]\nprefill = 1.5", 'for [prefill] from {}: unable to convert "1.5" into int'),
        ("[up]\nprefill_ports = [1.5]", 'from {}: unable to convert "1.5" into int'),
        ("[up]\nprefill = -1", "--prefill -1 has to be at least 0"),
        ("prefil = 2", '"prefil" in {} is none of the tables'),
        ("[prox]\nport = 2", "Did you mean [proxy]?"),
        ("prefill = 2", '"prefill" in {} stands outside the table of a command'),
        ("[up", "{}: TOMLDecodeError: Expected ']'"),
        (None, "--config {}: No such file or directory"),
    ],
)
def test_a_file_is_refused_by_the_key(
    text: str | None, said: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        file.write_text(text)
    with pytest.raises(SystemExit) as ended:
        parse(["up"], file)
    assert ended.value.code == 2
    assert said.format(file) in capsys.readouterr().err


def test_a_file_that_cannot_be_read_is_named(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.mkdir()
    with pytest.raises(SystemExit) as ended:
        parse(["up"], file)
    assert ended.value.code == 2
    assert f"--config {file}: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["two", "1.5"])
def test_a_variable_is_refused_by_its_name(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PDSERVE_PREFILL", value)
    with pytest.raises(SystemExit) as ended:
        parse(["up"])
    assert ended.value.code == 2
    assert f'PDSERVE_PREFILL from env: unable to convert "{value}"' in capsys.readouterr().err


def test_a_number_that_need_not_be_whole_may_have_a_fraction() -> None:
    assert up("--drain-timeout-s", "1.5", "--kv-disk-size", "0.5").drain_timeout_s == 1.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--help"], "Run a whole cluster on this machine."),
        (["--version"], version("pdserve")),
        *(([command, "--help"], "Usage: pdserve") for command in COMMANDS),
        (["up", "--help"], "--prefill"),
    ],
)
def test_help_loads_nothing(words: list[str], said: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOAD_NOTHING, *words], capture_output=True, text=True, cwd=ROOT
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert said in ran.stdout


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_the_file_has_one_variable(words: list[str]) -> None:
    """Also where the help is asked for by saying nothing."""
    ran = subprocess.run(
        [sys.executable, "-c", LOAD_NOTHING, *words], capture_output=True, text=True, cwd=ROOT
    )
    assert ran.stdout.count("PDSERVE_CONFIG") == 1


def test_a_refusal_is_a_line_and_a_status(file: Path) -> None:
    """The whole way, with --config before the command."""
    file.write_text("[up]\nprefill = -1")
    words = ["--config", str(file), "up"]
    ran = subprocess.run(
        [sys.executable, "-c", LOAD_NOTHING, *words], capture_output=True, text=True, cwd=ROOT
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--prefill -1 has to be at least 0" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("value", ["", "  "])
@pytest.mark.parametrize("name", ["API_KEY", "ADMIN_API_KEY", "CLUSTER_KEY"])
def test_an_empty_key_opens_no_door(
    value: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"PDSERVE_{name}", value)
    with pytest.raises(SystemExit):
        parse(["up"])
    assert f"PDSERVE_{name} is set, but empty" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["API_KEY", "ADMIN_API_KEY", "CLUSTER_KEY"])
def test_a_key_of_any_bytes_is_refused_and_not_shown(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"PDSERVE_{name}", os.fsdecode(b"\xffsecret"))
    with pytest.raises(SystemExit):
        parse(["up"])
    told = capsys.readouterr().err
    assert f"PDSERVE_{name} is no UTF-8" in told
    assert "secret" not in told


@pytest.mark.parametrize("flag", ["--api-key", "--admin-api-key", "--cluster-key"])
def test_a_key_of_any_bytes_is_refused_by_its_flag(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("up", "proxy"):
        with pytest.raises(SystemExit, match="2"):
            parse([command, flag, os.fsdecode(b"\xffsecret")])
        told = capsys.readouterr().err
        assert f"{flag} is no UTF-8" in told
        assert "secret" not in told


def test_a_process_may_have_as_many_connections_as_the_system_allows() -> None:
    subprocess.run([sys.executable, "-c", FEW_FILES], cwd=ROOT, check=True, timeout=60)


def script(folder: Path, *others: tuple[str, str]) -> str:
    """Run the XpYd script beside a pdserve that says what it was told; what it said."""
    for name, text in (
        ("deploy/xpyd.sh", (ROOT / "deploy" / "xpyd.sh").read_text()),
        (".venv/bin/pdserve", '#!/bin/sh\necho "$@"\n'),
        *others,
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    searched = f"{folder / 'tools'}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", "deploy/xpyd.sh", "--dtype", "float32"],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"CDPATH": str(folder), "DECODE_GPUS": "2,3", "PATH": searched},
    )
    assert ran.stderr == ""
    return ran.stdout


def test_the_script_starts_the_pdserve_beside_it(tmp_path: Path) -> None:
    """Also for those whose shell has a CDPATH, with which `cd` talks."""
    said = script(tmp_path, ("tools/nvidia-smi", "#!/bin/sh\nexit 9\n"))
    assert said.startswith("up --port 10001 --discovery-port 30001 ")
    assert "--prefill 1 --decode 2 --prefill-ports 20003 " in said
    assert said.endswith(" --dtype float32\n")
    assert "cuda" not in said
    assert "kv-ports" not in said


def test_the_script_gives_each_node_its_gpu_where_there_are_any(tmp_path: Path) -> None:
    said = script(tmp_path, ("tools/nvidia-smi", "#!/bin/sh\necho GPU 0: a device\n"))
    devices = "--prefill-devices cuda:0 --decode-devices cuda:2 --decode-devices cuda:3"
    assert f" {devices} --dtype float32" in said
