"""The cost model: measured times of nodes' prompts and steps, and of pairs' transfers.

A node is identified by its address, since it runs on the same machine after a restart. A new
one is assumed to be like the others; the first are assumed to be fast, so that they are tried.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from discovery.node import Node
from discovery.registration import Role
from engine.request import Request
from proxy.routing.claims import PromptWork, WorkTiming
from proxy.routing.linear_fit import LinearFit

K, M, G = 1e3, 1e6, 1e9
# s: for each prompt, each 1,000 tokens, each million pairs of tokens
PROMPT = (0.005, 0.02, 0.0002)
# s: for each step, each request, each 100,000 tokens of all requests
STEP = (0.01, 0.0002, 0.002)
LINK = (0.002, 0.02)  # s: for each transfer, each GB
HUNDRED_K = 1e5
UNSURE, LIKE_OTHERS = 16.0, 1.0  # variance of the first weights
MOST_NODES, MOST_PAIRS = 4096, 16_384
OUTPUT_WEIGHT = 0.05
FIRST_OUTPUT = 128.0
LEAST_TOKENS = 4  # of an answer, to measure steps
Key = TypeVar("Key", bound=Hashable)


def _fit(weights: tuple[float, ...]) -> LinearFit:
    return LinearFit(list(weights), UNSURE)


@dataclass(slots=True)
class Costs:
    """A LinearFit for each node and pair; bounded, the oldest are dropped first."""

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
        """The fit of seconds for prompts on this node, by `of_work`."""
        return self._prompts.get(node.address) or self._usual_prompt(node.role)

    def step(self, node: Node) -> LinearFit:
        """The fit of seconds for a decode step on this node, by `of_batch`."""
        return self._steps.get(node.address) or self._step

    def link_s(self, prefill: Node, decode: Node, num_bytes: float) -> float:
        """Predicted seconds from the prefill node's first token until decode has its KV."""
        fit = self._links.get((prefill.address, decode.address)) or self._link
        return fit.at((1.0, num_bytes / G))

    def tokens_to_come(self, request: Request) -> float:
        """Expected tokens of the answer, by the mean of earlier ones and its limits."""
        sampling, said = request.sampling, len(request.generated)
        most = max(1, sampling.max_tokens - said)
        if sampling.ignore_eos:
            return most
        return min(most, max(self.mean_output, sampling.min_tokens - said))

    def learn_prompts(self, node: Node, measured: WorkTiming) -> None:
        """Learn from how long a node took to run prompts."""
        usual, x = self._prompt[node.role], of_work(measured.work)
        _of(self._prompts, node.address, self._usual_prompt(node.role), MOST_NODES).learn(
            x, measured.seconds
        )
        usual.learn(x, measured.seconds)

    def learn_step(self, node: Node, requests: float, tokens: float, seconds: float) -> None:
        """Learn from a node's mean step time over an answer."""
        x = of_batch(requests, tokens)
        _of(self._steps, node.address, self._step, MOST_NODES).learn(x, seconds)
        self._step.learn(x, seconds)

    def learn_transfer(
        self, prefill: Node, decode: Node, num_bytes: int, seconds: float
    ) -> None:
        """Learn from how long after the first token a pair's KV arrived."""
        x, pair = (1.0, num_bytes / G), (prefill.address, decode.address)
        _of(self._links, pair, self._link, MOST_PAIRS).learn(x, seconds)
        self._link.learn(x, seconds)

    def learn_output(self, tokens: int) -> None:
        """Learn from the length of an answer that ended by itself."""
        self.mean_output += OUTPUT_WEIGHT * (tokens - self.mean_output)

    def _usual_prompt(self, role: Role) -> LinearFit:
        """The fit over all nodes of the role, or of the other if none has run a prompt."""
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
    """The fit's x for prompts that run one after another."""
    return float(work.prompts), work.tokens / K, work.pairs / M


def of_prompt(tokens: int, pairs: int) -> tuple[float, float, float]:
    """The fit's x for one prompt."""
    return 1.0, tokens / K, pairs / M


def of_batch(requests: float, tokens: float) -> tuple[float, float, float]:
    """The fit's x for a step of this many requests, with this many tokens in all."""
    return 1.0, requests, tokens / HUNDRED_K
