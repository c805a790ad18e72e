"""Runs all choices of one text request, and merges their text into one stream of pieces."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

from api.choices import ChoiceState, Echo, TextPiece
from api.encoding import run_off_loop
from api.gate import ADMIT_ALL, AdmissionControl, AdmittedRequest, with_deadline
from api.generator import Generator, Tap, TokenEvent
from api.streams import Streams
from api.text.detokenizing import Detokenizer
from api.text_requests import TextRequest

TapFactory = Callable[[ChoiceState, AdmittedRequest], Tap]
"""Makes the tap of a choice once its request has been admitted."""


class Answer:
    """Generates the choices of one request concurrently."""

    def __init__(
        self, generator: Generator, request: TextRequest, gate: AdmissionControl = ADMIT_ALL
    ) -> None:
        body, codec = request.body, request.codec
        special, include = body.skip_special_tokens, bool(body.include_stop_str_in_output)
        thinking = request.thinking
        shown = request.calling.markers if request.calling else ()
        shown += thinking.markers if thinking else ()

        def detokenizer(prompt: Sequence[int]) -> Detokenizer:
            one = codec.detokenizer(skip_special_tokens=special is not False, shown=shown)
            return one.after_prompt(prompt) if body.continues_text else one

        self.request = request
        self._generator, self._gate = generator, gate
        self._reading, self._echoes = asyncio.Lock(), dict[int, Echo]()
        self.choices = [
            ChoiceState(
                index,
                call,
                detokenizer(call.request.prompt),
                request.stop_strings.matcher(include=include),
                only_echo=body.only_echo,
                reasoning_reader=thinking.reader() if thinking else None,
            )
            for index, call in enumerate(request.calls)
        ]

    async def _echo(self, choice: ChoiceState) -> Echo:
        """The prompt's text, decoded once for all choices; in a thread if it is long."""
        request, prompt = self.request, choice.call.request.prompt
        number = choice.index // request.n
        async with self._reading:
            if number not in self._echoes:
                special = request.body.skip_special_tokens is not False
                detokenizer = request.codec.detokenizer(skip_special_tokens=special)
                tells = choice.call.request.sampling.logprobs is not None
                read = partial(Echo.of, prompt, detokenizer, tells=tells)
                self._echoes[number] = await run_off_loop(len(prompt), read)
        return self._echoes[number]

    async def pieces(self, make_tap: TapFactory | None = None) -> AsyncGenerator[TextPiece]:
        """Yield the pieces of all choices in order of arrival; closing the stream aborts all of
        them.

        Raises StreamFailed. If there is only one choice, its plain tokens may go to the tap
        that `make_tap` makes; those are not yielded.
        """
        async with self._gate.enter(self.request.admission_request) as let_in:
            first, alone = self.choices[0], len(self.choices) == 1
            tap = (
                make_tap(first, let_in) if make_tap and alone and first.is_plain_text else None
            )
            pieces = self._choice_pieces(first, tap) if alone else self._merged_pieces()
            if let_in.deadline is not None:
                pieces = with_deadline(let_in.deadline, pieces)
            async with aclosing(pieces):
                async for piece in pieces:
                    let_in.record_tokens(len(piece.tokens), piece.index)
                    yield piece

    async def _merged_pieces(self) -> AsyncGenerator[TextPiece]:
        all_done, left = asyncio.Event(), len(self.choices)
        async with Streams[int, TextPiece]() as streams:
            for choice in self.choices:
                streams.open(choice.index, self._choice_pieces(choice, all_done=all_done))
            while news := await streams.next():
                index, piece = news
                yield piece
                left -= piece.finish is not None or self.choices[index].call.leg.hold
                if not left:
                    all_done.set()

    async def _choice_pieces(
        self, choice: ChoiceState, tap: Tap | None = None, all_done: asyncio.Event | None = None
    ) -> AsyncGenerator[TextPiece]:
        """A prefill leg waits at its token until all choices are done, and its ticket with it:
        if the client leaves before, its KV is not kept either.
        """
        call, piece = choice.call, None
        if self.request.body.echoes_prompt:
            choice.echo = await self._echo(choice)
        async with aclosing(self._generator.stream(call.request, call.leg, tap)) as events:
            async for event in events:
                piece = choice.process_event(event)
                if choice.can_leave:
                    break
                if piece is not None:
                    yield piece
                if all_done and call.leg.hold and isinstance(event, TokenEvent):
                    await all_done.wait()
        if choice.can_leave and piece is not None:
            yield piece
        if last := choice.end_stream():
            yield last
