"""The command line: `pdserve up|proxy|prefill|decode|status`.

Each setting is a flag, a PDSERVE_* variable and a key of the TOML file that --config names,
in this order; a key nobody knows is refused, with the nearest that somebody does.
"""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.config import Env, Toml

from deploy.config import UpConfig
from discovery.registration import Role
from node.config import NodeConfig

VARIABLES = "PDSERVE_"
app = App(name="pdserve", help="Disaggregated prefill and decode serving of language models.")
Settings = Parameter(name="*")
UP_DEFAULTS = UpConfig()


@app.command
def up(config: Annotated[UpConfig, Settings] = UP_DEFAULTS) -> None:
    """Run a whole cluster on this machine."""
    from deploy.up import run  # each command loads only what it runs

    run(config)


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
