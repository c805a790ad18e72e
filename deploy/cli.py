"""The command line: `pdserve up|proxy|prefill|decode|status`.

Each setting is a flag, a PDSERVE_* variable and a key of the TOML file that --config names,
in this order; a key nobody knows is refused, with the nearest that somebody does.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.config import Env, Toml

from deploy.config import UpConfig
from discovery.registration import Role
from node.config import NodeConfig
from proxy.config import ProxyConfig

VARIABLES = "PDSERVE_"
app = App(name="pdserve", help="Disaggregated prefill and decode serving of language models.")
Settings = Parameter(name="*")
UP_DEFAULTS, PROXY_DEFAULTS = UpConfig(), ProxyConfig()
ADMIN_KEY_VARIABLE = "ADMIN_API_KEY"  # vLLM's name for it


@app.command
def up(config: Annotated[UpConfig, Settings] = UP_DEFAULTS) -> None:
    """Run a whole cluster on this machine."""
    from deploy.up import run  # each command loads only what it runs

    run(config)


@app.command
def proxy(config: Annotated[ProxyConfig, Settings] = PROXY_DEFAULTS) -> None:
    """Run the proxy: clients and nodes come to it."""
    from proxy.main import run

    admin_api_key = config.admin_api_key or os.environ.get(ADMIN_KEY_VARIABLE)
    run(replace(config, admin_api_key=admin_api_key))


@app.command
def prefill(config: Annotated[NodeConfig, Settings]) -> None:
    """Run a prefill node: prompts in, KV to be fetched."""
    from node.main import run

    run(Role.PREFILL, config)


@app.command
def decode(config: Annotated[NodeConfig, Settings]) -> None:
    """Run a decode node: KV in, tokens out."""
    from node.main import run

    run(Role.DECODE, config)


@app.meta.default
def _with_file(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Annotated[Path | None, Parameter(env_var="PDSERVE_CONFIG")] = None,
) -> None:
    """Take settings from a TOML file too."""
    files = [Toml(config, must_exist=True)] if config else []
    app.config = [Env(VARIABLES, command=False), *files]
    app(tokens)


def main(*command: str) -> None:
    """The command, if it is not given here, is on the command line."""
    app.meta([*command, *sys.argv[1:]])
