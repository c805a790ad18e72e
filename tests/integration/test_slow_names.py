"""A node has a proxy whose name is looked up for long: its other proxies hear of it as ever."""

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from discovery.listener import Listener
from tests.fakes.watched import WatchedRegistry

ROOT, BEATS = Path(__file__).parents[2], 5
SLOW = "slow.invalid:30001"
RESOLVER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

typedef int (*Lookup)(const char *, const char *, const struct addrinfo *, struct addrinfo **);

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    if (node && !strcmp(node, "slow.invalid")) for (;;) pause();
    return ((Lookup)dlsym(RTLD_NEXT, "getaddrinfo"))(node, service, hints, found);
}
"""
NODE = """
import asyncio, sys
from discovery.announcer import Announcer
from discovery.registration import Registration, Role

here = Registration(Role.PREFILL, "h:1", "h:2", "p0")
asyncio.run(Announcer.connect(sys.argv[1:], lambda: here, beat_s=0.01).run())
"""


@pytest.fixture
def resolver(tmp_path: Path) -> Path:
    """A library that finds every name but one, for which it never comes back."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler")
    source, library = tmp_path / "resolver.c", tmp_path / "resolver.so"
    source.write_text(RESOLVER)
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return library


async def test_no_other_proxy_waits_for_a_name(resolver: Path) -> None:
    registry = WatchedRegistry()
    listener = Listener.bind(registry, "127.0.0.1", 0)
    hearing = asyncio.create_task(listener.run())
    proxies = SLOW, f"127.0.0.1:{listener.port}"
    environment = {**os.environ, "LD_PRELOAD": str(resolver)}
    command = sys.executable, "-c", NODE, *proxies
    node = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment)
    try:
        await registry.until(lambda: len(registry.beats) > BEATS)
    finally:
        node.kill()
        await node.wait()
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
        listener.close()
