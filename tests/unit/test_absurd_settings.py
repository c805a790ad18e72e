"""Values that mean nothing end a command with one line that names the flag."""

import os

import pytest

from deploy.cli import parse
from engine.errors import UnusableDevice
from engine.running.accelerator import open_accelerator
from node.config import MOST_THREADS
from proxy.config import MOST_WORKERS

NODE = ["decode", "--model", "m"]
TOO_LARGE = str(1 << 63)
OTHER_BYTES = os.fsdecode(b"\xffpath")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*NODE, "--max-num-seqs", TOO_LARGE], "--max-num-seqs 9223372036854775808 has to be"),
        ([*NODE, "--seed", f"-{TOO_LARGE}"], "--seed -9223372036854775808 has to be at least"),
        (["up", "--decode-ports", TOO_LARGE], "--decode-ports 9223372036854775808 has to be"),
        ([*NODE, "--threads", str(MOST_THREADS + 1)], "--threads 1025 has to be at most 1024"),
        ([*NODE, "--kv-disk-path", OTHER_BYTES], "--kv-disk-path is no UTF-8"),
        (["decode", "--model", OTHER_BYTES], "--model is no UTF-8"),
        (["up", "--lora-modules", f"a={OTHER_BYTES}"], "--lora-modules is no UTF-8"),
        (["proxy", "--workers", "2", "--text-cache-dir", OTHER_BYTES], "-dir is no UTF-8"),
        (["proxy", "--workers", str(MOST_WORKERS + 1)], "--workers 257 has to be at most 256"),
        (["up", "--workers", "1000000"], "--workers 1000000 has to be at most 256"),
        (["proxy", "--worker-of", "hub/é"], "--worker-of hub/é is set by the parent"),
        (["proxy", "--supervisor-fd", "-1"], "--supervisor-fd -1 has to be at least 0"),
        ([*NODE, "--supervisor-fd", "2147483648"], "--supervisor-fd 2147483648 has to be at"),
        (["status", "--url", "http://h:70000"], "--url http://h:70000: Port out of range"),
        (["balance", "--url", "http://["], "--url http://[: Invalid IPv6 URL"),
    ],
)
def test_it_is_refused_before_anything_runs(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(words)
    assert said in " ".join(capsys.readouterr().err.replace("│", " ").split())


@pytest.mark.parametrize("value", ["9223372036854775807", "1_000"])
def test_what_fits_into_a_message_is_taken(value: str) -> None:
    _, bound = parse([*NODE, "--max-num-seqs", value])
    assert bound.arguments["config"].max_num_seqs == int(value)


def test_as_many_workers_as_may_be_are_taken() -> None:
    _, bound = parse(["proxy", "--workers", str(MOST_WORKERS)])
    assert bound.arguments["config"].workers == MOST_WORKERS


def test_one_proxy_by_itself_takes_a_path_of_any_bytes() -> None:
    _, bound = parse(["proxy", "--text-cache-dir", OTHER_BYTES])
    assert bound.arguments["config"].text_cache_dir == OTHER_BYTES


@pytest.mark.parametrize("device", ["vulkan", "meta"])
def test_a_device_without_memory_is_refused_in_one_line(device: str) -> None:
    with pytest.raises(UnusableDevice, match=f"^--device {device}: ") as caught:
        open_accelerator(device)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["cpu", "cpu:0"])
def test_a_cpu_is_no_accelerator(device: str) -> None:
    assert open_accelerator(device) is None
