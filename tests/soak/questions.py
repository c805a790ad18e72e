"""What is asked, and what one engine on its own answers to it: the judge of all answers."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.request import Request, RequestId, Sampling
from tests.fakes.driver import load, prompt, run
from tests.fakes.reference import Reference
from tests.soak.clients import Told

LONGEST_PROMPT, LONGEST_ANSWER = 240, 48
CHOICES = (1, 1, 1, 1, 2)
SHARED = prompt(96, 7)  # what a third of all prompts begin with
LONG_SHARED = prompt(300, 8)  # and a sixth: so much that states are copied behind it
AT_ONCE = 64
TIE = 1e-4  # of a float64 reference, in logits


@dataclass(frozen=True, slots=True)
class Question:
    """One call: a prompt, how to answer it, and how many choices."""

    number: int
    prompt: tuple[int, ...]
    sampling: Sampling
    n: int
    path: str = "/v1/completions"

    def body(self, model: str) -> dict[str, Any]:
        """What a client sends."""
        asked = self.sampling
        return {
            "model": model,
            "prompt": list(self.prompt),
            "n": self.n,
            "max_tokens": asked.max_tokens,
            "temperature": asked.temperature,
            "seed": asked.seed,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }

    def requests(self) -> list[Request]:
        """What an engine is asked for it."""
        drawn = [
            Sampling(
                max_tokens=self.sampling.max_tokens,
                temperature=self.sampling.temperature,
                seed=self.sampling.seed,
                ignore_eos=True,
                sample_index=index,
            )
            for index in range(self.n)
        ]
        return [
            Request(RequestId(f"{self.number}-{index}"), self.prompt, one)
            for index, one in enumerate(drawn)
        ]


def questions(count: int, chance: random.Random) -> list[Question]:
    """Short and long ones, greedy and sampled, some with a prefix that others have too."""
    return [_question(number, chance) for number in range(count)]


def _question(number: int, chance: random.Random) -> Question:
    own = prompt(chance.randrange(1, LONGEST_PROMPT - len(SHARED)), chance.randrange(10_000))
    shared = chance.choice([SHARED, SHARED, LONG_SHARED, (), (), ()])
    sampling = Sampling(
        max_tokens=chance.randrange(1, LONGEST_ANSWER),
        temperature=chance.choice([0.0, 0.0, 1.0]),
        seed=chance.randrange(1 << 31),
        ignore_eos=True,
    )
    return Question(number, (*shared, *own), sampling, chance.choice(CHOICES))


def answers(folder: Path, asked: Sequence[Question]) -> list[list[list[int]]]:
    """One list of tokens for each choice of each question."""
    engine = load(folder)
    requests = [request for question in asked for request in question.requests()]
    said = [
        answer
        for start in range(0, len(requests), AT_ONCE)
        for answer in run(engine, requests[start : start + AT_ONCE])
    ]
    rest = iter(said)
    return [[next(rest) for _ in range(question.n)] for question in asked]


@dataclass(slots=True)
class EngineJudge:
    """Compares with what one engine said; `excused` is how many that differ had the same right.

    `expected` are the tokens of each choice of each question that was `asked`.
    """

    folder: Path
    asked: Sequence[Question]
    expected: Sequence[Sequence[Sequence[int]]]
    excused: int = 0
    _reference: Reference | None = None

    def failures(self, told: Mapping[int, Told]) -> list[str]:
        """Every call that failed: none may."""
        return [f"{number}: {one.failure}" for number, one in told.items() if one.failure]

    def differences(self, told: Mapping[int, Told]) -> list[str]:
        """Which choices are not what the engine said; of who left, not how that begins."""
        found = list[str]()
        for question, wanted in zip(self.asked, self.expected, strict=True):
            one = told.get(question.number)
            if one is None or one.failure is not None:
                continue
            for index, (whole, said) in enumerate(zip(wanted, one.choices, strict=True)):
                fair = whole[: len(said)] if one.left else whole
                if self.differs(question, fair, said):
                    found.append(f"{question.number}.{index}: {fair} is {said}")
        return found

    def differs(self, question: Question, expected: Sequence[int], said: Sequence[int]) -> bool:
        """A greedy token may be another one if the two were as likely, and all else with it."""
        if list(said) == list(expected):
            return False
        pairs = zip(expected, said, strict=False)
        place = next((i for i, (one, two) in enumerate(pairs) if one != two), None)
        if place is None or question.sampling.temperature:
            return True
        if self._margin(question, expected, said, place) >= TIE:
            return True
        self.excused += 1
        return False

    def _margin(
        self, question: Question, expected: Sequence[int], said: Sequence[int], place: int
    ) -> float:
        import torch

        self._reference = self._reference or Reference(self.folder, torch.float64)
        logits = self._reference.logits([*question.prompt, *expected[:place]])[-1]
        return abs(float(logits[expected[place]] - logits[said[place]]))
