"""What things take, as it was measured: prompts and steps of each node, links of each pair.

A node is known by its address: another start of it runs on the same machine. One that was not
met yet is taken for like the others; where there are none, for quick, so that it is tried.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from discovery.registration import Role
from discovery.registry import Node
from engine.request import Request
from proxy.routing.claims import PromptWork, WorkTiming
from proxy.routing.linear_fit import LinearFit

K, M, G = 1e3, 1e6, 1e9
PROMPT = (0.005, 0.02, 0.0002)  # s: each, each 1,000 tokens, each million pairs of tokens
STEP = (0.01, 0.0002, 0.002)  # s: each, each request, each 100,000 tokens of all of them
LINK = (0.002, 0.02)  # s: each, each GB
HUNDRED_K = 1e5
UNSURE, LIKE_OTHERS = 16.0, 1.0  # how far off weights may be at first, squared
MOST_NODES, MOST_PAIRS = 4096, 16_384
OUTPUT_WEIGHT = 0.05
FIRST_OUTPUT = 128.0
LEAST_TOKENS = 4  # of an answer, to measure steps
Key = TypeVar("Key", bound=Hashable)


def _fit(weights: tuple[float, ...]) -> LinearFit:
    return LinearFit(list(weights), UNSURE)


@dataclass(slots=True)
class Costs:
    """Fits for all that was met; bounded, the oldest go first."""

    mean_output: float = FIRST_OUTPUT
    _prompt: dict[Role, LinearFit] = field(
        default_factory=lambda: {r: _fit(PROMPT) for r in Role}
    )
    _step: LinearFit = field(default_factory=lambda: _fit(STEP))
    _link: LinearFit = field(default_factory=lambda: _fit(LINK))
    _prompts: dict[str, LinearFit] = field(default_factory=dict)
    _steps: dict[str, LinearFit] = field(default_factory=dict)
    _links: dict[tuple[str, str], LinearFit] = field(default_factory=dict)

    def prompt(self, node: Node) -> LinearFit:
        """Of prompts on this node: their number, tokens and pairs, see `of_work`."""
        return self._prompts.get(_address(node)) or self._usual_prompt(node.role)

    def step(self, node: Node) -> LinearFit:
        """Of a step for one token of each of some requests: see `of_batch`."""
        return self._steps.get(_address(node)) or self._step

    def link_s(self, prefill: Node, decode: Node, num_bytes: float) -> float:
        """From the first token at one node until the other can go on."""
        fit = self._links.get((_address(prefill), _address(decode))) or self._link
        return fit.at((1.0, num_bytes / G))

    def tokens_to_come(self, request: Request) -> float:
        """How long the answer will be, by those before it and by what it may be at most."""
        sampling, said = request.sampling, len(request.generated)
        most = max(1, sampling.max_tokens - said)
        if sampling.ignore_eos:
            return most
        return min(most, max(self.mean_output, sampling.min_tokens - said))

    def learn_prompts(self, node: Node, measured: WorkTiming) -> None:
        """A node has run prompts."""
        usual, x = self._prompt[node.role], of_work(measured.work)
        _of(self._prompts, _address(node), self._usual_prompt(node.role), MOST_NODES).learn(
            x, measured.seconds
        )
        usual.learn(x, measured.seconds)

    def learn_step(self, node: Node, requests: float, tokens: float, seconds: float) -> None:
        """A node's steps took so long, in the mean over an answer."""
        x = of_batch(requests, tokens)
        _of(self._steps, _address(node), self._step, MOST_NODES).learn(x, seconds)
        self._step.learn(x, seconds)

    def learn_transfer(
        self, prefill: Node, decode: Node, num_bytes: int, seconds: float
    ) -> None:
        """A pair's KV has arrived so long after the first token."""
        x, pair = (1.0, num_bytes / G), (_address(prefill), _address(decode))
        _of(self._links, pair, self._link, MOST_PAIRS).learn(x, seconds)
        self._link.learn(x, seconds)

    def learn_output(self, tokens: int) -> None:
        """An answer that its model ended had so many tokens."""
        self.mean_output += OUTPUT_WEIGHT * (tokens - self.mean_output)

    def _usual_prompt(self, role: Role) -> LinearFit:
        """Of nodes of this role, or of the other where none has run one."""
        ours = self._prompt[role]
        if ours.count:
            return ours
        for fit in self._prompt.values():
            if fit.count:
                return fit
        return ours


def _of(fits: dict[Key, LinearFit], key: Key, usual: LinearFit, most: int) -> LinearFit:
    if (fit := fits.get(key)) is None:
        fit = fits[key] = usual.like(LIKE_OTHERS if usual.count else UNSURE)
        while len(fits) > most:
            del fits[next(iter(fits))]
    return fit


def of_work(work: PromptWork) -> tuple[float, float, float]:
    """For one prompt or several, one after the other."""
    return float(work.prompts), work.tokens / K, work.pairs / M


def of_prompt(tokens: int, pairs: int) -> tuple[float, float, float]:
    """For one prompt."""
    return 1.0, tokens / K, pairs / M


def of_batch(requests: float, tokens: float) -> tuple[float, float, float]:
    """For so many requests, with so many tokens in all."""
    return 1.0, requests, tokens / HUNDRED_K


def _address(node: Node) -> str:
    return node.registration.http_address
