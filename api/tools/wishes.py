"""What a chat says of tools: `tools`, `tool_choice` and `parallel_tool_calls`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.tools.functions import CUSTOM, Function, InputSchema, Tool, custom_function
from api.wire import WireError, convert

Mode = Literal["none", "auto", "required"]


class Named(msgspec.Struct, frozen=True):
    """The name of a function, or of a custom tool."""

    name: str


class NamedTool(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A `tool_choice` that is one function."""

    function: Named

    @property
    def named(self) -> tuple[str, str]:
        """Where it is named, and how."""
        return "function.name", self.function.name


class NamedCustom(msgspec.Struct, frozen=True, tag_field="type", tag="custom"):
    """A `tool_choice` that is one custom tool."""

    custom: Named

    @property
    def named(self) -> tuple[str, str]:
        """Where it is named, and how."""
        return "custom.name", self.custom.name


class Allowed(msgspec.Struct, frozen=True):
    """Some of the tools, which `mode` is about."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool | NamedCustom], Meta(min_length=1)]


class AllowedTools(msgspec.Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    """A `tool_choice` of these alone: the prompt has all, so that it stays cached."""

    allowed_tools: Allowed


OneTool = NamedTool | NamedCustom
Choice = Mode | OneTool | AllowedTools
Offered = Mapping[str, Function]
"""Functions by their names, in the client's order."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions that the model is told of, and what the answer may or must do with them.

    `mode` is `required` also where the choice is one function: then that is `named`. Not
    `parallel`: an answer has one call at most. `allowed`: only these may be called. `customs`
    are custom tools, which are functions to the model.
    """

    told: Offered
    mode: Mode
    named: str | None = None
    parallel: bool = True
    allowed: frozenset[str] | None = None
    customs: frozenset[str] = frozenset()

    @property
    def offered(self) -> Offered:
        """What may be called."""
        return {one.name: one for _, one in self.every}

    @property
    def every(self) -> Sequence[tuple[int, Function]]:
        """The same, each with its place among the tools."""
        some, every = self.allowed, enumerate(self.told.values())
        return [(n, one) for n, one in every if some is None or one.name in some]

    @property
    def formed(self) -> Mapping[str, InputSchema]:
        """Custom tools that may be called, and whose text has a form."""
        found = {name: one.parameters for name, one in self.offered.items()}
        return {name: one for name, one in found.items() if isinstance(one, InputSchema)}

    @property
    def forced(self) -> Sequence[tuple[int, Function]]:
        """What one of has to be called, each with its place among the tools."""
        if self.mode != "required":
            return ()
        return [(n, one) for n, one in self.every if self.named in (None, one.name)]


def read_tools(
    tools: Sequence[Mapping[str, Any]] | None, choice: Choice | None, parallel: bool | None
) -> ToolUse | None:
    """None where there are no tools; raises WireError, which names the field."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise WireError("tool_choice asks for a call without tools", "tool_choice")
        return None
    use = ToolUse(
        told=_functions(tools),
        mode="auto",
        parallel=parallel is not False,
        customs=frozenset(one["custom"]["name"] for one in tools if one["type"] == CUSTOM),
    )
    match choice:
        case AllowedTools(some):
            path = "tool_choice.allowed_tools.tools"
            names = [_name(one, use, f"{path}[{n}]") for n, one in enumerate(some.tools)]
            return replace(use, mode=some.mode, allowed=frozenset(names))
        case NamedTool() | NamedCustom():
            return replace(use, mode="required", named=_name(choice, use, "tool_choice"))
        case _:
            return replace(use, mode=choice or "auto")


def _name(one: OneTool, use: ToolUse, path: str) -> str:
    """That of a tool which is there, and of this kind."""
    where, name = one.named
    if name not in use.told or (name in use.customs) != isinstance(one, NamedCustom):
        kind, param = where.partition(".")[0], f"{path}.{where}"
        raise WireError(f"{param}: there is no {kind} `{name}` among the tools", param)
    return name


def _functions(tools: Sequence[Mapping[str, Any]]) -> Offered:
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
    """And where it is."""
    if given.get("type") == CUSTOM:
        return custom_function(given, path), f"{path}.{CUSTOM}"
    return convert(given, Tool, path).function, f"{path}.function"
