"""The command line: `pdserve up|proxy|prefill|decode|status|balance|bench`.

Each setting is a flag, a PDSERVE_* variable and a key of the TOML file that --config names,
in this order. The file has a table for each command. A flag or a key that nobody knows is
refused, with the nearest that somebody does.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import version
from inspect import BoundArguments
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import (
    App,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    CycloptsPanel,
    Parameter,
)
from cyclopts.config import Env, Toml

from bench.config import BenchConfig
from deploy.allocator import restart_with_preload, tbb_libraries
from deploy.config import BalanceConfig, StatusConfig, UpConfig
from deploy.limits import raise_file_limit
from deploy.standard_files import open_standard_files
from discovery.checks import is_utf8
from discovery.registration import Role
from node.config import NodeConfig
from proxy.config import ProxyConfig

VARIABLES = "PDSERVE_"
FROM_VARIABLES = Env(VARIABLES, command=False)
USAGE_ERROR = 2
KEYS = ("API_KEY", "ADMIN_API_KEY", "CLUSTER_KEY", "FOREIGN_API_KEY")
app = App(
    name="pdserve",
    help="Disaggregated prefill and decode serving of language models.",
    version=lambda: version("pdserve"),
    config=[FROM_VARIABLES],
)
Settings = Parameter(name="*")
CONFIG = Parameter(help="A TOML file with a table for each command.")
UP_DEFAULTS, PROXY_DEFAULTS = UpConfig(), ProxyConfig()
STATUS_DEFAULTS, BALANCE_DEFAULTS = StatusConfig(), BalanceConfig()
BENCH_DEFAULTS = BenchConfig()
ADMIN_KEY_VARIABLE = "ADMIN_API_KEY"  # vLLM's name for it


@app.command
def up(config: Annotated[UpConfig, Settings] = UP_DEFAULTS) -> None:
    """Run a whole cluster on this machine."""
    from deploy.up import run  # each command loads only what it runs

    run(config)


@app.command
def proxy(config: Annotated[ProxyConfig, Settings] = PROXY_DEFAULTS) -> None:
    """Run the proxy: clients and nodes come to it."""
    if config.allocator == "auto" and config.worker_of is None:  # workers have their parent's
        restart_with_preload(tbb_libraries())
    from proxy.main import run

    if config.workers > 1:
        from deploy.workers import run
    run(replace(config, admin_api_key=_admin_key(config.admin_api_key)))


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


@app.command
def status(config: Annotated[StatusConfig, Settings] = STATUS_DEFAULTS) -> None:
    """Show a running cluster; ends with 0 where all is well."""
    from deploy.status import run

    run(replace(config, admin_api_key=_admin_key(config.admin_api_key)))


@app.command
def balance(config: Annotated[BalanceConfig, Settings] = BALANCE_DEFAULTS) -> None:
    """Change nodes' roles as load needs it, until stopped."""
    from deploy.balance import run

    run(replace(config, admin_api_key=_admin_key(config.admin_api_key)))


@app.command
def bench(config: Annotated[BenchConfig, Settings] = BENCH_DEFAULTS) -> None:
    """Measure requests per second and time to first token."""
    from bench.main import run

    run(config)


@app.meta.default
def _with_file(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    config: Annotated[Path | None, CONFIG] = None,
) -> None:
    """Take settings from a TOML file too."""
    command, bound = parse(tokens, config)
    command(*bound.args, **bound.kwargs)


def parse(
    tokens: Sequence[str], file: Path | None = None
) -> tuple[Callable[..., None], BoundArguments]:
    """The command to call and its settings; raises SystemExit if they are invalid."""
    try:
        _must_be_keys(f"{VARIABLES}{name}" for name in KEYS)
        files = [_tables(file)] if file else []
        app.config = [FROM_VARIABLES, *files, _must_be_whole]
        command, bound, _ = app.parse_args(tokens)
        for settings in bound.arguments.values():
            _must_be_utf8(settings)
    except (ValueError, OSError) as error:  # the settings' own errors, and the file's
        app.error_console.print(CycloptsPanel(error))
        raise SystemExit(USAGE_ERROR) from error
    return command, bound


def main(*command: str) -> None:
    """Run the command given here, or else the one on the command line."""
    open_standard_files()
    raise_file_limit()
    app.meta([*command, *sys.argv[1:]])


def _must_be_whole(
    app: App,
    commands: tuple[str, ...],
    arguments: ArgumentCollection,
) -> None:
    """Raises CoercionError for a fraction where an integer is wanted: it would be rounded."""
    del app, commands
    for argument in arguments:
        for token in argument.tokens if _is_integer(argument.hint) else ():
            if "." in token.value:
                raise CoercionError(argument=argument, token=token, target_type=int)


def _is_integer(hint: Any) -> bool:  # noqa: ANN401  any annotation
    return hint is int or any(_is_integer(one) for one in get_args(hint))


def _admin_key(said: str | None) -> str | None:
    return said or os.environ.get(ADMIN_KEY_VARIABLE) or None


def _must_be_keys(variables: Iterable[str]) -> None:
    """Raises ValueError for an empty key: a key that is missing by mistake must not leave a
    door open.

    Also for one that is not UTF-8, since it could not be used for signing, nor sent.
    """
    for name in variables:
        value = os.environ.get(name, "unset")
        if not value.strip():
            raise ValueError(f"{name} is set, but empty")
        if not is_utf8(value):
            raise ValueError(f"{name} is no UTF-8")


def _must_be_utf8(settings: object) -> None:
    """Raises ValueError for a key given by a flag, as for one given by a variable."""
    for name in KEYS:
        if not is_utf8("".join(getattr(settings, name.lower(), None) or ())):
            raise ValueError(f"--{name.lower().replace('_', '-')} is no UTF-8")


def _tables(path: Path) -> Toml:
    """The file's settings by command; raises ValueError for a table that no command has."""
    file, commands = Toml(path, must_exist=True), [name for name in app if name[0] != "-"]
    try:
        path.expanduser().open("rb").close()  # a TypeError of cyclopts where that fails
        tables = file.config
    except CycloptsError as error:
        raise ValueError(f"{path}: {error}") from error
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}") from error
    for name, table in tables.items():
        if name not in commands:
            near = get_close_matches(name, commands, n=1)
            hint = f" Did you mean [{near[0]}]?" if near else ""
            known = ", ".join(f"[{one}]" for one in commands)
            raise ValueError(f'"{name}" in {path} is none of the tables {known}.{hint}')
        if not isinstance(table, dict):
            raise ValueError(f'"{name}" in {path} stands outside the table of a command.')
    return file
