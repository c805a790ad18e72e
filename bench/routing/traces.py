"""Request traces for the simulation: growing chats, or requests of one size."""

from dataclasses import dataclass
from itertools import count
from random import Random

from bench.routing.simulation import Arrival
from engine.request import Request, RequestId, Sampling

APART = 1009  # distance of the texts' first tokens, so that no two begin alike


@dataclass(frozen=True, slots=True)
class Chats:
    """Chats that begin with one of a few system prompts; each turn repeats all before it."""

    chats: int = 200
    systems: int = 8
    system_tokens: int = 2048
    turns: int = 6
    said_tokens: int = 256  # by the user in a turn, on average
    answer_tokens: int = 192  # on average
    rate: float = 4.0  # chats that begin per second
    pause_s: float = 12.0  # between turns, on average

    def arrivals(self, seed: int) -> list[Arrival]:
        """All arrivals, ordered by time."""
        chance, tokens = Random(seed), count()
        systems = [_new(tokens, self.system_tokens) for _ in range(self.systems)]
        found, begins = list[Arrival](), 0.0
        for chat in range(self.chats):
            begins += chance.expovariate(self.rate)
            at, prompt = begins, chance.choice(systems)
            for turn in range(chance.randint(1, 2 * self.turns - 1)):
                prompt += _new(tokens, 16 + int(chance.expovariate(1 / self.said_tokens)))
                answer = _new(tokens, 16 + int(chance.expovariate(1 / self.answer_tokens)))
                request = _request(f"{chat}.{turn}", prompt, len(answer), f"chat {chat}")
                found.append(Arrival(at, request, answer))
                prompt += answer
                at += chance.expovariate(1 / self.pause_s) + 0.015 * len(answer)
        return sorted(found, key=lambda one: one.at)


def alike(
    number: int, prompt_tokens: int, answer_tokens: int, rate: float, seed: int
) -> list[Arrival]:
    """`number` requests of one size, without common prefixes, at random times."""
    chance, tokens, at = Random(seed), count(), 0.0
    found = list[Arrival]()
    for index in range(number):
        at += chance.expovariate(rate)
        prompt, answer = _new(tokens, prompt_tokens), _new(tokens, answer_tokens)
        found.append(Arrival(at, _request(str(index), prompt, answer_tokens, ""), answer))
    return found


def _new(tokens: "count[int]", number: int) -> tuple[int, ...]:
    begin = next(tokens) * APART
    return tuple(range(begin, begin + number))


def _request(name: str, prompt: tuple[int, ...], most: int, session: str) -> Request:
    sampling = Sampling(max_tokens=most, ignore_eos=True)
    return Request(RequestId(name), prompt, sampling, session=session)
