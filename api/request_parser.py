"""From the JSON body of a text endpoint to a TextRequest: checked, rendered and tokenized."""

from collections.abc import Sequence
from dataclasses import dataclass

from api.bodies import ChatBody, CompletionBody, TextBody
from api.encoding import MOST_TOKENS, LengthLimit, encode_chat, encode_text, run_off_loop
from api.errors import BadRequest
from api.prompts import prompts_of
from api.reasoning.thinking import Thinking
from api.rendering import render_chat
from api.request_grammars import RequestGrammars
from api.sampling import grammar_field, requires_json, stop_strings_of
from api.served import LegReader, ServedModel
from api.text.tokenizing import TextCodec
from api.text_requests import MOST_CALLS, CallBuilder, GeneratorCall, TextRequest, Tokens
from api.tools.calling import ToolCalling, tool_calling_of
from api.tools.strict import ReasoningInGrammar, strict_functions
from api.tools.structured import StructuredOutput
from api.wire import WireError
from engine.request import Grammar

NO_CHANNELS = (
    "response_format beside tools needs to know where this model's last message begins: start "
    'the server with --reasoning-parser, or choose tool_choice "none"'
)
NOT_CONSTRAINED = (
    "nothing holds calls of this answer to a grammar, unless tool_choice asks for one: it has "
    "another form, or no mark tells this model's calls from text"
)


@dataclass(frozen=True, slots=True)
class RequestParser:
    """Parses bodies for one served model; `read_leg` determines the leg of each request."""

    served: ServedModel
    read_leg: LegReader

    async def parse_completion(self, body: CompletionBody, outer_id: str) -> TextRequest:
        """Parse a completion body; raises ApiError."""
        model, codec = self._check_model(body)
        special = body.add_special_tokens is not False
        given = prompts_of(body.prompt, "prompt", MOST_CALLS)
        calls = self._calls(body, outer_id, len(given))
        self._check([one for one in given if not isinstance(one, str)])
        characters = sum(len(one) for one in given if isinstance(one, str))
        fit = _length_limit(characters, calls)

        def encode_one(one: str | Tokens) -> Tokens:
            """The prompt's tokens, before any further one is encoded."""
            tokens = (
                encode_text(codec, one, fit, special=special) if isinstance(one, str) else one
            )
            if not tokens:
                raise BadRequest("prompt must not be empty", "prompt")
            return calls.kept(tokens)

        prompts = await run_off_loop(characters, lambda: [*map(encode_one, given)], codec)
        return await self._build_request(calls, model, prompts)

    async def parse_chat(self, body: ChatBody, outer_id: str, size: int) -> TextRequest:
        """Parse a chat body of `size` bytes, in a thread if it is large; raises ApiError."""
        model, _ = self._check_model(body)
        calls = self._calls(body, outer_id)
        fit = _length_limit(size, calls)
        calling, prompt, thinking = await self._render_prompt(body, size, fit)
        return await self._build_request(calls, model, [calls.kept(prompt)], calling, thinking)

    async def count_prompt_tokens(self, body: ChatBody, size: int) -> int:
        """The number of tokens of the chat's prompt, before any truncation, whether or not it
        fits the context; raises ApiError.
        """
        self._check_model(body)
        _, prompt, _ = await self._render_prompt(
            body, size, LengthLimit(max_tokens=MOST_TOKENS)
        )
        return len(prompt)

    async def _render_prompt(
        self, body: ChatBody, size: int, fit: LengthLimit
    ) -> tuple[ToolCalling | None, Tokens, Thinking | None]:
        codec = self.served.text
        calling = self._calling(body, codec)
        must_call = calling is not None and bool(calling.tools.forced)
        parser = self.served.reasoning_parser
        special = bool(body.add_special_tokens)

        def encode() -> tuple[Tokens, Thinking | None]:
            text, thinking = render_chat(body, codec, parser, must_call=must_call)
            if special or body.cache_salt:  # a salted prompt shares no cached turns
                return encode_text(codec, text, fit, special=special), thinking
            return encode_chat(codec, text, fit), thinking

        prompt, thinking = await run_off_loop(size, encode, codec)
        if not prompt:
            raise BadRequest("the chat template makes nothing of the messages", "messages")
        return calling, prompt, thinking

    def _check_model(self, body: TextBody) -> tuple[str, TextCodec]:
        if body.stream_options and not body.stream:
            raise BadRequest("stream_options are for streams only", "stream_options")
        model = self.served.resolve_name(body.model)
        if self.served.pooling is not None and not self.served.pooling.generates:
            raise BadRequest("This model does not generate text")
        return model, self.served.text

    def _calls(self, body: TextBody, outer_id: str, num_prompts: int = 1) -> CallBuilder:
        return CallBuilder.of(self.served, self.read_leg, body, outer_id, num_prompts)

    def _check(self, prompts: Sequence[Tokens]) -> None:
        """Refuse token ids outside the vocabulary."""
        largest = max((max(tokens, default=0) for tokens in prompts), default=0)
        if largest and largest >= self.served.num_token_ids:
            raise BadRequest(f"token id {largest} is out of vocabulary", "prompt")

    async def _build_request(
        self,
        builder: CallBuilder,
        model: str,
        prompts: Sequence[Tokens],
        calling: ToolCalling | None = None,
        thinking: Thinking | None = None,
    ) -> TextRequest:
        body, outer_id, calls = builder.body, builder.outer_id, builder.build(prompts)
        grammar = calls[0].request.sampling.grammar
        if calling is not None and calling.tools.input_schemas:
            await RequestGrammars(self.served.grammars, None, calling).check_custom_tools()
        if grammar is not None:
            holding = RequestGrammars(self.served.grammars, grammar_field(body), calling)
            await holding.check(grammar)
            beside = calling is not None and not calling.tools.forced and requires_json(body)
            if thinking is not None:
                thinking, calls = self._delay_grammar(thinking, calls, grammar, beside=beside)
            if calling is not None and not calling.tools.forced and not beside:
                _refuse_unconstrained(calling)
            if beside:
                calls = await self._allow_tool_calls(holding, calls, grammar)
        elif calling is not None and strict_functions(calling.tools):
            calls = await self._constrain_tool_calls(calling, calls, thinking)
        codec, stops = self.served.text, stop_strings_of(body)
        n = body.n or 1
        return TextRequest(outer_id, model, calls, n, codec, stops, body, calling, thinking)

    def _delay_grammar(
        self, thinking: Thinking, calls: list[GeneratorCall], grammar: Grammar, *, beside: bool
    ) -> tuple[Thinking | None, list[GeneratorCall]]:
        """Make the grammar apply after the reasoning, or drop reasoning if the grammar leaves
        no room for it. `beside`: the model may call tools instead.
        """
        if (marks := thinking.grammar_marks(grammar, self._token, calls=beside)) is not None:
            return thinking.without_call_openings(), [
                call.with_grammar_after(marks) for call in calls
            ]
        return thinking if thinking.can_reason_within(grammar) else None, calls

    async def _allow_tool_calls(
        self, holding: RequestGrammars, calls: list[GeneratorCall], form: Grammar
    ) -> list[GeneratorCall]:
        """The calls, with a grammar that now allows tool calls as well as the form."""
        behind = calls[0].request.sampling.grammar_behind is not None
        either = await holding.allow_tool_calls(StructuredOutput(form, behind))
        if either is not None:
            return [call.with_grammar(either) for call in calls]
        _refuse_unconstrained(holding.calling)
        if not behind:
            raise BadRequest(NO_CHANNELS, "response_format")
        return calls

    async def _constrain_tool_calls(
        self, calling: ToolCalling, calls: list[GeneratorCall], thinking: Thinking | None
    ) -> list[GeneratorCall]:
        """The calls, with a grammar that makes tool calls follow the schemas of strict
        functions.

        It applies after the reasoning, or to the whole answer if no token marks the end of the
        reasoning, or if a tool call ends it too.
        """
        assert calling.dialect is not None
        special = self.served.text.special_ids
        if any(self._token(one) in special for one in calling.dialect.text_markers):
            _refuse_unconstrained(calling)
            return calls
        marks, reasoning = None, ReasoningInGrammar()
        if thinking is not None:
            marks, reasoning = thinking.grammar_start(self._token)
        holding = RequestGrammars(self.served.grammars, "tools", calling)
        if (grammar := await holding.text_with_calls(reasoning)) is None:
            _refuse_unconstrained(calling)
            return calls
        held = [call.with_grammar(grammar) for call in calls]
        return held if marks is None else [call.with_grammar_after(marks) for call in held]

    def _token(self, text: str) -> int | None:
        """The model's single token with this text, if there is one."""
        token = self.served.text.single_token(text)
        return None if token is None or token >= self.served.num_token_ids else token

    def _calling(self, body: ChatBody, codec: TextCodec) -> ToolCalling | None:
        """The tool calling of a body; raises BadRequest."""
        try:
            if (use := body.tool_use) is None or use.mode == "none":
                return None
            told, template = self.served.tool_call_parser, codec.tokenizer.chat_template
            formed = requires_json(body)
            added = codec.added_tokens
            return tool_calling_of(
                use, told, template, body.messages, formed=formed, added_tokens=added
            )
        except WireError as error:
            raise BadRequest(str(error), error.param) from error


def _refuse_unconstrained(calling: ToolCalling | None) -> None:
    """Raise BadRequest if a custom tool needs a grammar: calls cannot be constrained."""
    for schema in calling.tools.input_schemas.values() if calling else ():
        raise BadRequest(f"{schema.param}: {NOT_CONSTRAINED}", schema.param)


def _length_limit(size: int, calls: CallBuilder) -> LengthLimit:
    """The limit for `size` characters of a request's texts."""
    body = calls.body
    return LengthLimit.of(
        size, body.truncate_prompt_tokens, calls.context, body.truncation_side
    )
