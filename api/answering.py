"""All choices of one text request, from token events to pieces of text."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

from api.calls import Asked
from api.choices import Choice, Echo, Piece
from api.encoding import aside
from api.gate import OPEN, Gate, Pass, until
from api.generator import Generator, Tap
from api.streams import Streams
from api.text.detokenizing import Detokenizer

Tapped = Callable[[Choice, Pass], Tap]
"""Makes a tap for a choice of a request that was let in."""


class Answer:
    """The choices of one request, all of them at once."""

    def __init__(self, generator: Generator, asked: Asked, gate: Gate = OPEN) -> None:
        body, codec = asked.body, asked.codec
        special, include = body.skip_special_tokens, bool(body.include_stop_str_in_output)
        thinking = asked.thinking
        shown = asked.calling.markers if asked.calling else ()
        shown += thinking.markers if thinking else ()

        def detokenizer(prompt: Sequence[int]) -> Detokenizer:
            one = codec.detokenizer(skip_special_tokens=special is not False, shown=shown)
            return one.behind(prompt) if body.goes_on else one

        self.asked = asked
        self._generator, self._gate = generator, gate
        self._reading, self._echoes = asyncio.Lock(), dict[int, Echo]()
        self.choices = [
            Choice(
                index,
                call,
                detokenizer(call.request.prompt),
                asked.stops.watch(include=include),
                only_echo=body.only_echo,
                thoughts=thinking.reader() if thinking else None,
            )
            for index, call in enumerate(asked.calls)
        ]

    async def _echo(self, choice: Choice) -> Echo:
        """Read once for all choices of a prompt, and where it holds up nobody."""
        request, asked = choice.call.request, self.asked
        number = choice.index // asked.n
        async with self._reading:
            if number not in self._echoes:
                special = asked.body.skip_special_tokens is not False
                detokenizer = asked.codec.detokenizer(skip_special_tokens=special)
                tells = request.sampling.logprobs is not None
                read = partial(Echo.of, request.prompt, detokenizer, tells=tells)
                self._echoes[number] = await aside(len(request.prompt), read)
        return self._echoes[number]

    async def pieces(self, tapped: Tapped | None = None) -> AsyncGenerator[Piece]:
        """In order of arrival; closing it aborts every choice. Raises StreamFailed.

        `tapped`: tokens of a choice that is alone may go there instead.
        """
        async with self._gate.enter(self.asked.visit) as let_in:
            first, alone = self.choices[0], len(self.choices) == 1
            tap = tapped(first, let_in) if tapped and alone and first.plain else None
            pieces = self._of(first, tap) if alone else self._pieces()
            if let_in.deadline is not None:
                pieces = until(let_in.deadline, pieces)
            async with aclosing(pieces):
                async for piece in pieces:
                    let_in.came(len(piece.tokens), piece.index)
                    yield piece

    async def _pieces(self) -> AsyncGenerator[Piece]:
        async with Streams[int, Piece]() as streams:
            for choice in self.choices:
                streams.open(choice.index, self._of(choice))
            while news := await streams.next():
                yield news[1]

    async def _of(self, choice: Choice, tap: Tap | None = None) -> AsyncGenerator[Piece]:
        call, piece = choice.call, None
        if self.asked.body.echoes:
            choice.echo = await self._echo(choice)
        async with aclosing(self._generator.stream(call.request, call.leg, tap)) as events:
            async for event in events:
                piece = choice.take(event)
                if choice.stopped:
                    break
                if piece is not None:
                    yield piece
        if choice.stopped and piece is not None:
            yield piece
        if last := choice.end():
            yield last
