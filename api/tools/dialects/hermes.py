"""Calls as objects of JSON between marks, as Hermes and Qwen write them, and many after them:

<tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call>
<|action_start|><|plugin|>
{"name": "f", "parameters": {"a": 1}}<|action_end|>              InternLM 2.5 and 3
<function_call> {"name": "f", "arguments": {"a": 1}}            Granite 20B FunctionCalling
"""

from dataclasses import dataclass, replace
from functools import partial

from api.tools.call_formats import (
    CallableTools,
    Schema,
    json_call_format,
    seq,
    tokens,
)
from api.tools.dialects.dialect import Dialect
from api.tools.parsing.call_objects import call_object
from api.tools.parsing.output import ParserOutput, Steps
from api.tools.parsing.steps import any_name, calls_after_markers, literal, skip_space
from api.tools.tool_choice import OfferedFunctions
from engine.grammars.structural_tags import Format


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """The marks around each object; `second` may follow the first mark; `before` and `behind`
    are the texts between marks and the object.
    """

    opens: str
    closes: str = ""
    second: str = ""
    before: str = "\n"
    behind: str = "\n"

    @property
    def markers(self) -> tuple[str, ...]:
        """All marks."""
        return tuple(filter(None, (self.opens, self.second, self.closes)))

    def parser(self, out: ParserOutput, offered: OfferedFunctions) -> Steps:
        """Parse an answer: each call has its own marks; text may come between calls."""
        del offered
        return calls_after_markers(out, self._call, self.opens)

    def _call(self, out: ParserOutput) -> Steps:
        if self.second:
            yield from literal((yield), self.second)
        yield from self.call(out, (yield from skip_space()))

    def call(self, out: ParserOutput, letter: str) -> Steps:
        """Parse the object, which begins with this letter. The closing mark may be missing.
        Raises NotACall.
        """
        yield from call_object(out, letter, any_name)
        if self.closes:
            yield from literal((yield from skip_space()), self.closes)
            out.drop_held()

    def write(
        self, tools: CallableTools, *, key: str = "arguments", between: str = "\n"
    ) -> Format:
        """Format calls, one after another."""
        return tools.calls(partial(self._written, key=key), between)

    def _written(self, name: str, schema: Schema, key: str) -> Format:
        opens = tokens(self.opens, self.second) if self.second else tokens(self.opens)
        inner = seq(opens, self.before, json_call_format(name, schema, key))
        return seq(inner, self.behind, tokens(self.closes)) if self.closes else inner


TAGS = ObjectForm("<tool_call>", "</tool_call>")
PLUGIN = ObjectForm("<|action_start|>", "<|action_end|>", "<|plugin|>", behind="")
FUNCTION_CALL = ObjectForm("<function_call>", before=" ", behind="")
PLUGIN_SIGN = PLUGIN.opens + PLUGIN.second


def write_plugin(tools: CallableTools) -> Format:
    """Format calls with the arguments' key as the template has it, or else as in training."""
    key = "arguments" if '"arguments": ' in tools.template else "parameters"
    return PLUGIN.write(tools, key=key, between="")


RESPONSE, END_OF_RESPONSE = "<response>", "</response>"
OTHERS = ("<function=", "<arg_key>", "<tool_calls>", "<invoke ")
HERMES = Dialect(
    TAGS.parser,
    TAGS.write,
    TAGS.markers,
    (TAGS.opens,),
    (*OTHERS, RESPONSE),
    start_markers=(TAGS.opens,),
)
ERNIE = replace(
    HERMES,
    template_signs=(TAGS.opens, RESPONSE),
    foreign_signs=OTHERS,
    wrapper_tokens=(RESPONSE, END_OF_RESPONSE),
)
INTERNLM = Dialect(
    PLUGIN.parser, write_plugin, PLUGIN.markers, (PLUGIN_SIGN,), start_markers=(PLUGIN.opens,)
)
GRANITE_20B = Dialect(
    FUNCTION_CALL.parser,
    FUNCTION_CALL.write,
    FUNCTION_CALL.markers,
    ("<function_call> ",),
    start_markers=(FUNCTION_CALL.opens,),
)
