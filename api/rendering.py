"""Renders a chat with its model's template, and determines whether the answer has reasoning."""

from collections.abc import Mapping, Sequence
from typing import Any

from api.bodies import ChatBody
from api.chat_messages import template_messages
from api.errors import BadRequest
from api.reasoning.channels import harmony_message
from api.reasoning.formats import OFF, ReasoningParser, find_format
from api.reasoning.switches import with_thinking_switch
from api.reasoning.thinking import RenderedPrompt, Thinking, thinking_of
from api.text.tokenizing import TextCodec
from api.tools.functions import as_functions
from api.wire import WireError

TOKENIZERS_OWN = frozenset(  # arguments that apply_chat_template itself takes
    {
        "chat_template",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_dict",
        "return_assistant_tokens_mask",
        "return_tensors",
        "sanitize_control_tokens",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


def render_chat(
    body: ChatBody, codec: TextCodec, parser: ReasoningParser, *, must_call: bool
) -> tuple[str, Thinking | None]:
    """The prompt, and how to find reasoning in the answer. Raises BadRequest.

    `must_call`: the answer has to be a tool call.
    """
    shape = codec.tokenizer.chat_template
    template = _template(body, shape)
    messages = template_messages(body.messages, shape)
    form = None if parser == OFF else find_format(parser, shape, codec.added_tokens)
    if form and form.channels:
        messages = [harmony_message(one) for one in messages]
    text = codec.render(messages, template)
    if form is None or (form.channels and must_call):  # in a message before the last
        return text, None
    continued = messages[-1]["content"] if body.continue_final_message else ""
    given = RenderedPrompt(text, continued, _kwargs(body, shape))
    return text, thinking_of(form, given, tells=body.include_reasoning is not False)


def _template(body: ChatBody, shape: object) -> Mapping[str, object]:
    """The template's variables other than the messages; raises BadRequest."""
    begin, go_on = body.add_generation_prompt is not False, body.continue_final_message
    if begin and go_on:
        param = "continue_final_message"
        raise BadRequest(f"{param} and add_generation_prompt exclude each other", param)
    tools = {"tools": _functions(body.tools)} if body.tools else {}
    sources = {"documents": body.documents} if body.documents else {}
    ends = {"add_generation_prompt": begin, "continue_final_message": bool(go_on)}
    return {**_kwargs(body, shape), **ends, **tools, **sources}


def _functions(tools: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    try:
        return as_functions(tools)
    except WireError as error:
        raise BadRequest(str(error), error.param) from error


def _kwargs(body: ChatBody, shape: object) -> dict[str, object]:
    """The client's variables; refuses those that `apply_chat_template` reads itself."""
    given, effort = body.chat_template_kwargs or {}, body.reasoning_effort
    if taken := TOKENIZERS_OWN.intersection(given):
        param = f"chat_template_kwargs.{min(taken)}"
        raise BadRequest(f"{param} is not supported", param)
    if effort is None:
        return with_thinking_switch(given, shape, on=None)
    return {
        **with_thinking_switch(given, shape, on=effort != "none"),
        "reasoning_effort": effort,
    }
