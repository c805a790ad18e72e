"""What the answers to one request are held to, checked before anybody has to keep to it."""

import asyncio
from dataclasses import dataclass, replace

from api.errors import BadRequest, TooBusy
from api.tools.beside import Formed
from api.tools.calling import Calling
from api.tools.schemas import arguments_grammar
from api.tools.strict import Aloud
from api.wire import WireError
from engine.errors import CheckersBusy, GrammarRefused
from engine.grammars.checking import GrammarChecker
from engine.request import Grammar

LARK = "lark: "  # in what is said of a grammar


@dataclass(frozen=True, slots=True)
class Holding:
    """`field` asked for the form; calls are read out of the answers by `calling`, if at all."""

    checker: GrammarChecker
    field: str | None
    calling: Calling | None

    async def check_inputs(self) -> None:
        """Whether texts of custom tools that may be called can be held to their forms; raises
        BadRequest, TooBusy.
        """
        use = self.calling.use if self.calling else None
        for name, schema in use.formed.items() if use else ():
            form, refusal = schema.form, None
            if form.syntax == "regex":  # alone: in a schema brackets stand around it
                refusal = await self._refusal(Grammar("regex", form.definition))
            assert use is not None
            refusal = refusal or await self._refusal(arguments_grammar(use.told[name]))
            if refusal is not None:
                raise BadRequest(f"{schema.place}: {refusal}", schema.place)

    async def check(self, grammar: Grammar) -> None:
        """Raises BadRequest, TooBusy."""
        if (refusal := await self._refusal(grammar)) is not None:
            raise BadRequest(refusal, await self._culprit() or self.field)

    async def beside_calls(self, formed: Formed) -> Grammar | None:
        """What leaves room for calls beside a form, which was checked. Functions that are not
        strict may have schemas that nothing can be held to; raises BadRequest where a strict
        one has, and TooBusy. None: the form itself leaves that room.
        """
        assert self.calling is not None
        offered = self.calling.use.offered
        try:
            grammar = await self._written(formed)
            if grammar is None or (refusal := await self._refusal(grammar)) is None:
                return grammar
            culprits = await self._culprits()
            for name, place in culprits.items():
                if offered[name].strict:
                    raise BadRequest(refusal, place)
            if (grammar := await self._written(replace(formed, loose=culprits))) is not None:
                await self.check(grammar)
        except WireError as error:
            raise BadRequest(str(error), error.param) from error
        return grammar

    async def text_with_calls(self, aloud: Aloud) -> Grammar | None:
        """Text, in which calls of strict functions keep to their schemas: see the function of
        that name. Raises BadRequest, which names a function that nothing can be held to, and
        TooBusy. None: nothing is held.
        """
        assert self.calling is not None
        try:
            grammar = await asyncio.to_thread(self.calling.text_with_calls, aloud)
        except WireError as error:
            raise BadRequest(str(error), error.param) from error
        if grammar is None or (refusal := await self._refusal(grammar)) is None:
            return grammar
        offered, culprits = self.calling.use.offered, await self._culprits()
        places = [place for name, place in culprits.items() if offered[name].strict]
        texts = [one.place for one in self.calling.use.formed.values() if LARK in refusal]
        raise BadRequest(refusal, next(iter([*places, *texts]), "tools"))

    async def _written(self, formed: Formed) -> Grammar | None:
        """In a thread: schemas may be large, and streams go on. Raises WireError."""
        assert self.calling is not None
        return await asyncio.to_thread(self.calling.beside, formed)

    async def _culprit(self) -> str | None:
        """The first function that has to be called, and whose schema cannot be kept to."""
        if self.calling is None or not self.calling.use.forced:
            return None
        try:
            return next(iter((await self._culprits()).values()), None)
        except TooBusy:  # that one of them is refused is known
            return None

    async def _refusal(self, grammar: Grammar) -> str | None:
        """Raises TooBusy."""
        try:
            await self.checker.checked(grammar)
        except GrammarRefused as refusal:
            return str(refusal)
        except CheckersBusy as busy:
            raise TooBusy(str(busy)) from busy
        return None

    async def _culprits(self) -> dict[str, str]:
        """Functions whose schemas cannot be kept to, each with the place of that."""
        found = dict[str, str]()
        use = self.calling.use if self.calling else None
        for index, function in (use.forced or use.every) if use else ():
            if await self._refusal(arguments_grammar(function)) is not None:
                found[function.name] = f"tools[{index}].function.parameters"
        return found
