"""What a chat says of tools: `tools`, `tool_choice` and `parallel_tool_calls`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.wire import WireError, convert

FunctionName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}\Z")]
Mode = Literal["none", "auto", "required"]


class Function(msgspec.Struct, frozen=True):
    """One function. `strict`: where calls are held to schemas, this one has to be possible."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True):
    """OpenAI's object; there are tools of other types, which are not a client's to run."""

    type: Literal["function"]
    function: Function


class Named(msgspec.Struct, frozen=True):
    """The name of a function."""

    name: str


class NamedTool(msgspec.Struct, frozen=True):
    """A `tool_choice` that is one function."""

    type: Literal["function"]
    function: Named


Choice = Mode | NamedTool
Offered = Mapping[str, Function]
"""Functions by their names, in the client's order."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The functions that were offered, and what the answer may or must do with them.

    `mode` is `required` also where the choice is one function: then that is `named`. Not
    `parallel`: an answer has one call at most.
    """

    offered: Offered
    mode: Mode
    named: str | None = None
    parallel: bool = True

    @property
    def every(self) -> Sequence[tuple[int, Function]]:
        """All functions, each with its place among the tools."""
        return list(enumerate(self.offered.values()))

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
    offered = _offered(tools)
    if not isinstance(choice, NamedTool):
        return ToolUse(offered, choice or "auto", parallel=parallel is not False)
    name = choice.function.name
    if name not in offered:
        param = "tool_choice.function.name"
        raise WireError(f"{param}: there is no function `{name}` among the tools", param)
    return ToolUse(offered, "required", name, parallel is not False)


def _offered(tools: Sequence[Mapping[str, Any]]) -> Offered:
    offered = dict[str, Function]()
    for index, given in enumerate(tools):
        where = f"tools[{index}]"
        function = convert(given, Tool, where).function
        if function.name in offered:
            param = f"{where}.function.name"
            raise WireError(f"{param}: there is another `{function.name}`", param)
        if (function.parameters or {}).get("type", "object") != "object":
            param = f"{where}.function.parameters"
            raise WireError(f"{param}: its type must be object", param)
        offered[function.name] = function
    return offered
