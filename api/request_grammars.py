"""The grammars of one request: built with its tool calls, and checked before generation."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from api.errors import BadRequest, TooBusy
from api.threads import run_in_thread
from api.tools.calling import ToolCalling
from api.tools.functions import Function, InputSchema
from api.tools.schemas import arguments_grammar
from api.tools.strict import ReasoningInGrammar
from api.tools.structured import StructuredOutput
from api.wire import WireError
from engine.errors import GrammarCheckBusy, GrammarRefused
from engine.grammars.checking import GrammarChecker
from engine.request import Grammar


@dataclass(frozen=True, slots=True)
class RequestGrammars:
    """Builds and checks the grammars of one request.

    `field` is the body's field that asked for structured output; `calling` parses tool calls.
    """

    checker: GrammarChecker
    field: str | None
    calling: ToolCalling | None

    async def check_custom_tools(self) -> None:
        """Check the formats of custom tools that may be called; raises BadRequest, TooBusy."""
        tools = self.calling.tools if self.calling else None
        for name, schema in tools.input_schemas.items() if tools else ():
            form, refusal = schema.grammar, None
            # the regex alone: in a schema, brackets would enclose it
            if form.syntax == "regex":
                refusal = await self._refusal(Grammar("regex", form.definition))
            assert tools is not None
            refusal = refusal or await self._refusal(arguments_grammar(tools.declared[name]))
            if refusal is not None:
                raise BadRequest(f"{schema.param}: {refusal}", schema.param)

    async def check(self, grammar: Grammar) -> None:
        """Check one grammar; raises BadRequest, which names the field, or TooBusy."""
        if (refusal := await self._refusal(grammar)) is not None:
            raise await self._of_function() or BadRequest(refusal, self.field)

    async def allow_tool_calls(self, formed: StructuredOutput) -> Grammar | None:
        """A grammar of the form, already checked, or of tool calls; None: the form itself
        leaves room for calls. A schema that no grammar can express is left out, unless its
        function is strict: then raises BadRequest. Raises TooBusy.
        """
        assert self.calling is not None
        with suppress(WireError):
            grammar = await self._build(formed)
            if grammar is None or await self._refusal(grammar) is None:
                return grammar
        loose = await self._unwritable()
        try:
            if (grammar := await self._build(replace(formed, any_object=loose))) is not None:
                await self.check(grammar)
        except WireError as error:
            raise BadRequest(str(error), error.param) from error
        return grammar

    async def text_with_calls(self, aloud: ReasoningInGrammar) -> Grammar | None:
        """A grammar of free text in which calls of strict functions follow their schemas; None:
        no function needs one. Raises BadRequest, naming the function, if no grammar can express
        its schema, and TooBusy.
        """
        assert self.calling is not None
        try:
            grammar = await run_in_thread(partial(self.calling.text_with_calls, aloud))
        except WireError as error:
            await self._unwritable()
            raise BadRequest(str(error), error.param) from error
        if grammar is None or (refusal := await self._refusal(grammar)) is None:
            return grammar
        await self._unwritable()
        raise BadRequest(refusal, "tools")

    async def _build(self, formed: StructuredOutput) -> Grammar | None:
        """Build it in a thread, as schemas may be large. Raises WireError and TooBusy."""
        assert self.calling is not None
        return await run_in_thread(partial(self.calling.calls_or_structured, formed))

    async def _unwritable(self) -> Collection[str]:
        """Functions whose calls no grammar can express. Raises BadRequest for a strict one, and
        TooBusy.
        """
        assert self.calling is not None
        found = list[str]()
        for index, function in self.calling.tools.indexed:
            refusal = await self._refusal_of_call(function)
            if refusal is not None and function.strict:
                raise BadRequest(refusal, _place(index, function))
            if refusal is not None:
                found.append(function.name)
        return found

    async def _refusal_of_call(self, function: Function) -> str | None:
        """Why no grammar can express its calls, in terms of its own schema if that is why."""
        assert self.calling is not None
        try:
            grammar = await run_in_thread(partial(self.calling.call_grammar, function))
        except WireError as error:
            return str(error)
        if (refusal := await self._refusal(grammar)) is None:
            return None
        return await self._refusal(arguments_grammar(function)) or refusal

    async def _of_function(self) -> BadRequest | None:
        """The refusal of the first forced function whose schema no grammar can express."""
        for index, function in self.calling.tools.forced if self.calling else ():
            try:
                if (refusal := await self._refusal(arguments_grammar(function))) is not None:
                    return BadRequest(refusal, _place(index, function))
            except TooBusy:  # one of them is known to be refused
                return None
        return None

    async def _refusal(self, grammar: Grammar) -> str | None:
        """The reason for which the grammar is refused, if it is; raises TooBusy."""
        try:
            await self.checker.checked(grammar)
        except GrammarRefused as refusal:
            return str(refusal)
        except GrammarCheckBusy as busy:
            raise TooBusy(str(busy)) from busy
        return None


def _place(index: int, function: Function) -> str:
    """The field in the body of a function's schema, or of a custom tool's grammar."""
    if isinstance(function.parameters, InputSchema):
        return function.parameters.param
    return f"tools[{index}].function.parameters"
