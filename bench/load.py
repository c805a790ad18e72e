"""A closed loop of clients against an OpenAI endpoint: each sends its next request at once."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from bench.answers import Answer, WrongAnswer, payload, read_answer, shortened

PATH = "v1/completions"
OK = 200
LONGEST_LINE = 8 << 20  # bytes; vLLM's first event repeats the prompt's tokens


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests: all prompts differ, and all answers have the same length."""

    requests: int = 256
    concurrency: int = 8
    prompt_tokens: int = 256
    output_tokens: int = 32
    vocabulary: int = 8000
    seed: int = 0

    def prompts(self) -> Iterator[list[int]]:
        """Random token ids; token 0 is left out, because it ends answers."""
        source = random.Random(self.seed)
        for _ in range(self.requests):
            yield [source.randrange(1, self.vocabulary) for _ in range(self.prompt_tokens)]


@dataclass(slots=True)
class Outcome:
    """Times of all answers, in seconds.

    `per_token` is, for each answer, the time from its first token to its last, divided by the
    number of tokens after the first; tokens that arrive together have no time between them.
    """

    seconds: float = 0.0
    first_token: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)
    stages: dict[str, list[float]] = field(default_factory=dict)

    @property
    def requests_per_s(self) -> float:
        """Answers over wall time."""
        return len(self.first_token) / self.seconds

    def add(self, asked: float, tokens: Sequence[float]) -> None:
        """Record an answer, and when each of its tokens arrived."""
        self.first_token.append(tokens[0] - asked)
        self.between_tokens += [b - a for a, b in pairwise(tokens)]
        if len(tokens) > 1:
            self.per_token.append((tokens[-1] - tokens[0]) / (len(tokens) - 1))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a `share` of `values` lies; between two of them, a part of both."""
    ordered, place = sorted(values), share * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


async def run_load(url: str, model: str, work: Workload, key: str | None = None) -> Outcome:
    """Send all requests to `v1/completions` below the URL; raises WrongAnswer, or aiohttp's
    errors.
    """
    outcome, prompts = Outcome(), work.prompts()
    timeout, headers = aiohttp.ClientTimeout(total=None), dict[str, str]()
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    line = aiohttp.TCPConnector(limit=0)  # aiohttp's default is 100 connections
    async with aiohttp.ClientSession(
        url, connector=line, timeout=timeout, headers=headers, read_bufsize=LONGEST_LINE // 2
    ) as session:
        client = _Client(session, model, work, outcome)
        since = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(work.concurrency, work.requests)):
                tasks.create_task(client.run(prompts))
        outcome.seconds = time.perf_counter() - since
    return outcome


@dataclass(slots=True)
class _Client:
    session: aiohttp.ClientSession
    model: str
    work: Workload
    outcome: Outcome

    async def run(self, prompts: Iterator[list[int]]) -> None:
        for prompt in prompts:
            await self._ask(prompt)

    async def _ask(self, prompt: list[int]) -> None:
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": self.work.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "pdserve": {"timings": True},
        }
        before, frames = time.perf_counter(), list[tuple[float, bytes]]()
        async with self.session.post(PATH, json=body, allow_redirects=False) as answer:
            if answer.status != OK:
                text = await answer.text(errors="replace")
                raise WrongAnswer(shortened(f"status {answer.status}: {text}"))
            async for line in _lines(answer.content):
                if (data := payload(line)) is not None:
                    frames.append((time.perf_counter(), data))
        self._book(before, read_answer(frames, self.work.output_tokens))

    def _book(self, before: float, answer: Answer) -> None:
        for stage, seconds in answer.stages:
            self.outcome.stages.setdefault(stage, []).append(seconds)
        self.outcome.add(before, answer.times)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    while True:
        try:
            line = await content.readline()
        except LineTooLong as error:
            raise WrongAnswer(f"a line of over {LONGEST_LINE} bytes") from error
        if not line:
            return
        yield line
