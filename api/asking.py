"""A text body becomes `Asked`: prompts are made of texts and conversations."""

from collections.abc import Sequence
from dataclasses import dataclass

from api.bodies import ChatBody, CompletionBody, TextBody
from api.calls import MOST_CALLS, Asked, Call, Caller, Tokens
from api.encoding import MOST_TOKENS, Fit, aside, encoded, of_turns
from api.errors import BadRequest
from api.holding import Holding
from api.prompts import prompts_of
from api.reasoning.thinking import Thinking
from api.rendering import rendered
from api.sampling import grammar_field, has_json_form, stops_of
from api.served import ReadLeg, Served
from api.text.tokenizing import TextCodec
from api.tools.beside import Formed
from api.tools.calling import Calling, calling_of
from api.tools.strict import Aloud, strict_of
from api.wire import WireError
from engine.request import Grammar

NO_CHANNELS = (
    "response_format beside tools needs to know where this model's last message begins: start "
    'the server with --reasoning-parser, or choose tool_choice "none"'
)
NOTHING_HOLDS = (
    "nothing holds calls of this answer to a grammar, unless tool_choice asks for one: it has "
    "another form, or no mark tells this model's calls from text"
)


@dataclass(frozen=True, slots=True)
class Asker:
    """Understands the bodies of one door."""

    served: Served
    read_leg: ReadLeg

    async def completion(self, body: CompletionBody, outer_id: str) -> Asked:
        """Raises ApiError."""
        model, codec = self._door(body)
        special = body.add_special_tokens is not False
        given = prompts_of(body.prompt, "prompt")
        if len(given) > MOST_CALLS:
            raise BadRequest(f"more than {MOST_CALLS} prompts in one request", "prompt")

        self._check([one for one in given if not isinstance(one, str)])
        characters = sum(len(one) for one in given if isinstance(one, str))
        fit = self._fit(body, characters)

        def encode() -> list[Tokens]:
            return [
                encoded(codec, one, fit, special=special) if isinstance(one, str) else one
                for one in given
            ]

        prompts = await aside(characters, encode)
        if not all(prompts):
            raise BadRequest("prompt must not be empty", "prompt")
        return await self._asked(body, outer_id, model, prompts)

    async def chat(self, body: ChatBody, outer_id: str, size: int) -> Asked:
        """Raises ApiError. `size` is that of the body, in bytes: so much there is to do."""
        model, _ = self._door(body)
        calling, prompt, thinking = await self._prompted(body, size, self._fit(body, size))
        return await self._asked(body, outer_id, model, [prompt], calling, thinking)

    async def count(self, body: ChatBody, size: int) -> int:
        """How many tokens the prompt of such a chat has, whether there is room for them or not,
        and before any are cut off; raises ApiError.
        """
        self._door(body)
        _, prompt, _ = await self._prompted(body, size, Fit(into=MOST_TOKENS))
        return len(prompt)

    async def _prompted(
        self, body: ChatBody, size: int, fit: Fit
    ) -> tuple[Calling | None, Tokens, Thinking | None]:
        codec = self.served.text
        calling = self._calling(body, codec)
        must_call = calling is not None and bool(calling.use.forced)
        parser = self.served.reasoning_parser
        special = bool(body.add_special_tokens)

        def encode() -> tuple[Tokens, Thinking | None]:
            text, thinking = rendered(body, codec, parser, must_call=must_call)
            if special or body.cache_salt:  # who has a salt shares nothing
                return encoded(codec, text, fit, special=special), thinking
            return of_turns(codec, text, fit), thinking

        prompt, thinking = await aside(size, encode)
        if not prompt:
            raise BadRequest("the chat template makes nothing of the messages", "messages")
        return calling, prompt, thinking

    def _door(self, body: TextBody) -> tuple[str, TextCodec]:
        if body.stream_options and not body.stream:
            raise BadRequest("stream_options are for streams only", "stream_options")
        model = self.served.name(body.model)
        if self.served.pooling is not None and not self.served.pooling.generates:
            raise BadRequest("This model does not generate text")
        return model, self.served.text

    def _fit(self, body: TextBody, size: int) -> Fit:
        return Fit.of(size, body.truncate_prompt_tokens, self.served.max_model_len)

    def _check(self, prompts: Sequence[Tokens]) -> None:
        """Refuse ids that no token has."""
        largest = max((max(tokens, default=0) for tokens in prompts), default=0)
        if largest and largest >= self.served.size:
            raise BadRequest(f"token id {largest} is out of vocabulary", "prompt")

    async def _asked(
        self,
        body: TextBody,
        outer_id: str,
        model: str,
        prompts: Sequence[Tokens],
        calling: Calling | None = None,
        thinking: Thinking | None = None,
    ) -> Asked:
        calls = Caller(self.served, self.read_leg, body, outer_id).calls(prompts)
        grammar = calls[0].request.sampling.grammar
        if calling is not None and calling.use.formed:
            await Holding(self.served.grammars, None, calling).check_inputs()
        if grammar is not None:
            holding = Holding(self.served.grammars, grammar_field(body), calling)
            await holding.check(grammar)
            beside = calling is not None and not calling.use.forced and has_json_form(body)
            if thinking is not None:
                thinking, calls = self._held_late(thinking, calls, grammar, beside=beside)
            if calling is not None and not calling.use.forced and not beside:
                _must_be_held(calling)
            if beside:
                calls = await self._beside_calls(holding, calls, grammar)
        elif calling is not None and strict_of(calling.use):
            calls = await self._strict(calling, calls, thinking)
        codec, stops = self.served.text, stops_of(body)
        n = body.n or 1
        return Asked(outer_id, model, calls, n, codec, stops, body, calling, thinking)

    def _held_late(
        self, thinking: Thinking, calls: list[Call], grammar: Grammar, *, beside: bool
    ) -> tuple[Thinking | None, list[Call]]:
        """The grammar behind the reasoning; or no reasoning, where it leaves no room for it.
        `beside`: calls may be made instead.
        """
        if (marks := thinking.marks(grammar, self._token, calls=beside)) is not None:
            return thinking.held(), [call.held_behind(marks) for call in calls]
        return thinking if thinking.has_room(grammar) else None, calls

    async def _beside_calls(
        self, holding: Holding, calls: list[Call], form: Grammar
    ) -> list[Call]:
        """These, with room for calls of tools in them."""
        behind = calls[0].request.sampling.grammar_behind is not None
        if (either := await holding.beside_calls(Formed(form, behind))) is not None:
            return [call.held_to(either) for call in calls]
        _must_be_held(holding.calling)
        if not behind:
            raise BadRequest(NO_CHANNELS, "response_format")
        return calls

    async def _strict(
        self, calling: Calling, calls: list[Call], thinking: Thinking | None
    ) -> list[Call]:
        """These, with calls in their text held to what strict functions take: behind reasoning,
        or wherever they come, where tokens do not tell its end or calls end it as well.
        """
        assert calling.dialect is not None
        special = self.served.text.hidden
        if any(self._token(one) in special for one in calling.dialect.spelt):
            _must_be_held(calling)
            return calls
        marks, aloud = thinking.beside(self._token) if thinking else (None, Aloud())
        holding = Holding(self.served.grammars, "tools", calling)
        if (grammar := await holding.text_with_calls(aloud)) is None:
            _must_be_held(calling)
            return calls
        held = [call.held_to(grammar) for call in calls]
        return held if marks is None else [call.held_behind(marks) for call in held]

    def _token(self, text: str) -> int | None:
        """The model's."""
        token = self.served.text.token(text)
        return None if token is None or token >= self.served.size else token

    def _calling(self, body: ChatBody, codec: TextCodec) -> Calling | None:
        """Raises BadRequest."""
        try:
            if (use := body.tool_use) is None or use.mode == "none":
                return None
            told, template = self.served.tool_call_parser, codec.tokenizer.chat_template
            formed = has_json_form(body)
            return calling_of(use, told, template, body.messages, formed=formed)
        except WireError as error:
            raise BadRequest(str(error), error.param) from error


def _must_be_held(calling: Calling | None) -> None:
    """Where nothing holds calls; raises BadRequest for a custom tool whose text has a form."""
    for schema in calling.use.formed.values() if calling else ():
        raise BadRequest(f"{schema.place}: {NOTHING_HOLDS}", schema.place)
