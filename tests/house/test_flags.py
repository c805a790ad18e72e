"""The page of flags has every flag, with its variable, its default and what it may be."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, get_args

import pytest

from bench.config import BenchConfig
from deploy.cli import VARIABLES, app
from deploy.config import DEMO_MODEL, BalanceConfig, ProxyAccess, StatusConfig, UpConfig
from node.config import NodeConfig, ServingOptions
from proxy.admission.options import LimitOptions
from proxy.config import ProxyConfig, ProxyOptions
from tests.house.test_docs import COMMANDS, SPAN, code_of, read, table

NEGATIONS = ("--no-", "--empty-")
SETTINGS: dict[str, type] = {
    "Serving options": ServingOptions,
    "A whole cluster": UpConfig,
    "A node": NodeConfig,
    "Proxy options": ProxyOptions,
    "Limits": LimitOptions,
    "The proxy": ProxyConfig,
    "A call to a proxy": ProxyAccess,
    "A look at a cluster": StatusConfig,
    "Roles by load": BalanceConfig,
    "A measurement": BenchConfig,
}


def flags_of(command: str) -> set[str]:
    arguments = app[command].assemble_argument_collection()
    return {name for one in arguments for name in one.names if name.startswith("--")}


def own_fields(kind: type) -> "list[Field[Any]]":
    """Without those that it shares with others, which have a table of their own."""
    bases = {
        name for base in kind.__mro__[1:] for name in vars(base).get("__annotations__", ())
    }
    return [field for field in fields(kind) if field.name not in bases]


def default_of(field: "Field[Any]") -> str:
    match field.default:
        case _ if field.default is MISSING:
            return "required"
        case None | ():
            return "none"
        case bool():
            return str(field.default).lower()
        case tuple():
            return ", ".join(field.default)
        case _:
            return str(field.default).replace(str(DEMO_MODEL), "the bundled model")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_is_on_the_page(command: str) -> None:
    spans = SPAN.findall(read("docs/reference/flags.md"))
    named = {flag for span in spans for flag in re.findall(r"--[a-z][a-z0-9-]*", span)}
    assert {flag for flag in flags_of(command) if not flag.startswith(NEGATIONS)} <= named


def test_every_flag_on_the_page_exists() -> None:
    code = code_of(read("docs/reference/flags.md"))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", code))
    known = {flag for command in COMMANDS for flag in flags_of(command)}
    assert named <= known | {"--config", "--help"}


@pytest.mark.parametrize("heading", SETTINGS)
def test_variables_and_defaults_are_the_codes(heading: str) -> None:
    rows = table(read("docs/reference/flags.md"), heading)
    assert [(row["flag"], row["variable"], row["default"]) for row in rows] == [
        (
            f"`--{field.name.replace('_', '-')}`",
            f"`{VARIABLES}{field.name.upper()}`",
            default_of(field),
        )
        for field in own_fields(SETTINGS[heading])
    ]


@pytest.mark.parametrize("heading", SETTINGS)
def test_every_choice_of_a_flag_is_in_its_row(heading: str) -> None:
    """Or in that of a flag with the same choices."""
    rows = table(read("docs/reference/flags.md"), heading)
    named = defaultdict[Sequence[str], set[str]](set)
    for row, field in zip(rows, own_fields(SETTINGS[heading]), strict=True):
        named[choices_of(field)].update(SPAN.findall(row["meaning"]))
    assert {one for choices, there in named.items() for one in set(choices) - there} == set()


def choices_of(field: Field[Any]) -> Sequence[str]:
    """Of a Literal, or of one that may be None; else none."""
    inner = [one for each in get_args(field.type) for one in (each, *get_args(each))]
    return tuple(one for one in inner if isinstance(one, str))
