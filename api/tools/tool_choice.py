"""A chat's `tools`, `tool_choice` and `parallel_tool_calls`, read into one ToolSettings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.tools.functions import (
    CUSTOM,
    FUNCTION,
    Function,
    InputSchema,
    Tool,
    custom_as_function,
)
from api.wire import WireError, convert

ToolChoiceMode = Literal["none", "auto", "required"]


class ToolName(msgspec.Struct, frozen=True):
    """The name of a function, or of a custom tool."""

    name: str


class NamedTool(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A `tool_choice` that is one function."""

    function: ToolName

    @property
    def path_and_name(self) -> tuple[str, str]:
        """The field that names the tool, for refusals, and the name."""
        return "function.name", self.function.name


class NamedCustom(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    """A `tool_choice` that is one custom tool."""

    custom: ToolName

    @property
    def path_and_name(self) -> tuple[str, str]:
        """See NamedTool."""
        return "custom.name", self.custom.name


class Allowed(msgspec.Struct, frozen=True):
    """The tools that may be called, and whether one of them must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool | NamedCustom], Meta(min_length=1)]


class AllowedTools(msgspec.Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """A `tool_choice` of some tools; the prompt still has all, so its prefix stays cached."""

    allowed_tools: Allowed


SingleTool = NamedTool | NamedCustom
ToolChoice = ToolChoiceMode | SingleTool | AllowedTools
OfferedFunctions = Mapping[str, Function]
"""Functions by their names, in the client's order."""


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """Tools of a request: the functions in the prompt, and what the answer may or must do with
    them.

    `declared`: all functions that the prompt has. `allowed`: the names that may be called;
    None: all. `mode` is `required` also if `tool_choice` is one function, which is `named`
    then. `parallel`: an answer may have several calls. `custom_tools`: names of custom tools,
    which models see as functions.
    """

    declared: OfferedFunctions
    mode: ToolChoiceMode
    named: str | None = None
    parallel: bool = True
    allowed: frozenset[str] | None = None
    custom_tools: frozenset[str] = frozenset()

    @property
    def offered(self) -> OfferedFunctions:
        """The functions that may be called."""
        return {one.name: one for _, one in self.indexed}

    @property
    def indexed(self) -> Sequence[tuple[int, Function]]:
        """The functions that may be called, each with its index in `tools`."""
        allowed, functions = self.allowed, enumerate(self.declared.values())
        return [(n, one) for n, one in functions if allowed is None or one.name in allowed]

    @property
    def input_schemas(self) -> Mapping[str, InputSchema]:
        """By name, the schemas of callable custom tools whose input has a grammar."""
        found = {name: one.parameters for name, one in self.offered.items()}
        return {name: one for name, one in found.items() if isinstance(one, InputSchema)}

    @property
    def forced(self) -> Sequence[tuple[int, Function]]:
        """The functions of which one must be called, each with its index in `tools`."""
        if self.mode != "required":
            return ()
        return [(n, one) for n, one in self.indexed if self.named in (None, one.name)]


def read_tools(
    tools: Sequence[Mapping[str, Any]] | None, choice: ToolChoice | None, parallel: bool | None
) -> ToolSettings | None:
    """Settings from the three fields; None without tools. Raises WireError with the field."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise WireError("tool_choice asks for a call without tools", "tool_choice")
        return None
    settings = ToolSettings(
        declared=_functions(tools),
        mode="auto",
        parallel=parallel is not False,
        custom_tools=frozenset(one["custom"]["name"] for one in tools if one["type"] == CUSTOM),
    )
    match choice:
        case AllowedTools(some):
            path = "tool_choice.allowed_tools.tools"
            names = [_name(one, settings, f"{path}[{n}]") for n, one in enumerate(some.tools)]
            return replace(settings, mode=some.mode, allowed=frozenset(names))
        case NamedTool() | NamedCustom():
            name = _name(choice, settings, "tool_choice")
            return replace(settings, mode="required", named=name)
        case _:
            return replace(settings, mode=choice or "auto")


def _name(one: SingleTool, settings: ToolSettings, path: str) -> str:
    """The chosen tool's name; raises WireError if `tools` has none of that name and type."""
    where, name = one.path_and_name
    same_type = (name in settings.custom_tools) == isinstance(one, NamedCustom)
    if name not in settings.declared or not same_type:
        kind, param = where.partition(".")[0], f"{path}.{where}"
        raise WireError(f"{param}: there is no {kind} `{name}` among the tools", param)
    return name


def _functions(tools: Sequence[Mapping[str, Any]]) -> OfferedFunctions:
    found = dict[str, Function]()
    for index, given in enumerate(tools):
        function, where = _function(given, f"tools[{index}]")
        if function.name in found:
            param = f"{where}.name"
            raise WireError(f"{param}: there is another `{function.name}`", param)
        if (function.parameters or {}).get("type", "object") != "object":
            param = f"{where}.parameters"
            raise WireError(f"{param}: its type must be object", param)
        found[function.name] = function
    return found


def _function(given: Mapping[str, Any], path: str) -> tuple[Function, str]:
    """A tool as a function, and the path of that in the body."""
    kind = given.get("type", FUNCTION)
    if kind == CUSTOM:
        return custom_as_function(given, path), f"{path}.{CUSTOM}"
    if isinstance(kind, str) and kind != FUNCTION:
        param = f"{path}.type"
        raise WireError(f"{param}: it may be '{FUNCTION}' or '{CUSTOM}', not {kind!r}", param)
    return convert(given, Tool, path).function, f"{path}.function"
