"""Converts a body of POST /v1/responses into the equivalent chat."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from api.bodies import ChatBody, convert
from api.error_fields import ErrorFieldNames
from api.errors import BadRequest
from api.responses.bodies import (
    SHARED,
    CustomTool,
    FunctionTool,
    ReasoningConfig,
    ResponsesAllowedTools,
    ResponsesBody,
    ResponsesNamedCustom,
    ResponsesNamedFunction,
    TextConfig,
    TextFormat,
    ToolChoice,
)
from api.responses.items import messages_of
from api.responses.namespaces import KIND, Namespace, flat_name
from api.tools import tool_choice
from api.tools.functions import CUSTOM

ALL_THAT_FITS = -1
KINDS = ("function", CUSTOM)
GRAMMAR = "grammar"
TOOL = r"tools\[\d+\]"
SEARCHES = (
    *("web_search", "web_search_2025_08_26"),
    *("web_search_preview", "web_search_preview_2025_03_11"),
)
"""OpenAI's web search; Codex offers it unless told otherwise."""
FIELD_NAMES = ErrorFieldNames(
    names=(
        (re.compile(r"^messages\b.*"), "input"),
        (re.compile(r"^tool_choice\.allowed_tools\b"), "tool_choice"),
        (re.compile(rf"^({TOOL}|tool_choice(\.{TOOL})?)\.(function|custom)\b"), r"\1"),
        (re.compile(rf"^({TOOL}(\.{TOOL})?\.format)\.grammar\b"), r"\1"),
        (re.compile(r"^response_format(\.json_schema)?\b"), "text.format"),
        (re.compile(r"^reasoning_effort\b"), "reasoning.effort"),
        (re.compile(r"^max_(completion_)?tokens\b"), "max_output_tokens"),
        (re.compile(r"^logprobs$"), "include"),
    ),
    in_passing=(
        (re.compile(r"(?<![\w`])response_format\b"), "text.format"),
        (re.compile(r"(?<![\w`])max_(completion_)?tokens\b"), "max_output_tokens"),
    ),
)


def chat_of(body: ResponsesBody) -> ChatBody:
    """The request as a chat; raises BadRequest."""
    if body.top_logprobs and not body.wants_logprobs:
        why = 'top_logprobs needs include to have "message.output_text.logprobs"'
        raise BadRequest(why, "top_logprobs")
    thinking = body.reasoning or ReasoningConfig()
    own = {
        "max_completion_tokens": body.max_output_tokens,
        "messages": messages_of(body.input, body.instructions),
        "tools": _tools(body.tools or ()) or None,
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _format((body.text or TextConfig()).format),
        "reasoning_effort": thinking.effort,
        "logprobs": body.wants_logprobs,
        "top_logprobs": body.top_logprobs,
        "session_id": body.session_id or body.prompt_cache_key,
        "truncate_prompt_tokens": _truncation(body),
        "include_reasoning": body.include_reasoning,
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    return ChatBody(**{**{name: getattr(body, name) for name in SHARED}, **own})


def _tools(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools as a chat has them. A web search beside functions is left out: the model may
    choose among those.
    """
    only_searches = all(one.get("type") in SEARCHES for one in given)
    told = list[dict[str, Any]]()
    for index, one in enumerate(given):
        path, kind = f"tools[{index}]", one.get("type")
        if kind == KIND:
            space = convert(one, Namespace, path)
            for number, inner in enumerate(space.tools):
                told.append(_tool(inner, f"{path}.tools[{number}]", space.name))
        elif kind not in SEARCHES or only_searches:
            told.append(_tool(one, path))
    return told


def _tool(given: Mapping[str, Any], path: str, namespace: str | None = None) -> dict[str, Any]:
    kind = given.get("type")
    if isinstance(kind, str) and kind not in KINDS:
        why = f"{path}.type: nobody runs tools of type {kind} here, only clients their own"
        raise BadRequest(why, f"{path}.type")
    if isinstance(name := given.get("name"), str):
        given = {**given, "name": flat_name(namespace, name)}
    kinds: type[CustomTool | FunctionTool] = CustomTool if kind == CUSTOM else FunctionTool
    tool = convert(given, kinds, path)
    fields = msgspec.structs.asdict(tool).items()
    told = {name: value for name, value in fields if name != "type" and value is not None}
    if isinstance(form := told.get("format"), dict) and form.get("type") == GRAMMAR:
        inner = {name: value for name, value in form.items() if name != "type"}
        told["format"] = {"type": GRAMMAR, GRAMMAR: inner}
    return {"type": tool.type, tool.type: told}


def _choice(choice: ToolChoice | None) -> tool_choice.ToolChoice | None:
    match choice:
        case ResponsesAllowedTools():
            some = list(map(_one, choice.tools))
            return tool_choice.AllowedTools(tool_choice.Allowed(choice.mode, some))
        case ResponsesNamedFunction() | ResponsesNamedCustom():
            return _one(choice)
        case _:
            return choice


def _one(tool: ResponsesNamedFunction | ResponsesNamedCustom) -> tool_choice.SingleTool:
    if isinstance(tool, ResponsesNamedCustom):
        return tool_choice.NamedCustom(tool_choice.ToolName(tool.name))
    return tool_choice.NamedTool(tool_choice.ToolName(tool.name))


def _format(given: TextFormat | None) -> dict[str, Any] | None:
    if given is None:
        return None
    if given.type != "json_schema":
        return {"type": given.type}
    if given.schema is None:
        raise BadRequest("text.format.schema is missing", "text.format.schema")
    return {"type": given.type, "json_schema": {"schema": given.schema}}


def _truncation(body: ResponsesBody) -> int | None:
    """The truncation: the beginning is dropped if not all of the prompt fits."""
    if body.truncate_prompt_tokens is None and body.truncation == "auto":
        return ALL_THAT_FITS
    return body.truncate_prompt_tokens
