"""Functions in namespaces, as Codex groups them: flat names for the model, and back. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from api.tools.functions import FunctionName

SEPARATOR = "__"  # the same as vLLM's
KIND = "namespace"


class Namespace(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that is a group of functions."""

    type: Literal["namespace"]
    name: FunctionName
    tools: list[dict[str, Any]]


class NamespacedName(NamedTuple):
    """A function's namespace, and its name in it."""

    namespace: str
    name: str


def flat_name(namespace: str | None, name: str) -> str:
    """The function's name in the prompt, which has no namespaces."""
    return name if namespace is None else f"{namespace}{SEPARATOR}{name}"


def namespaced_names(tools: Sequence[Mapping[str, Any]]) -> Mapping[str, NamespacedName]:
    """The functions in a namespace by their flat names, from tools that were validated."""
    return {
        flat_name(one["name"], inner["name"]): NamespacedName(one["name"], inner["name"])
        for one in tools
        if one.get("type") == KIND
        for inner in one["tools"]
    }
