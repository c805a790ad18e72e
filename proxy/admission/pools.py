"""What is at work at each model's nodes: answers where they decode, prompts where they prefill.

A prompt is its prefill node's until the first token of the answer is there: it is run, and its
KV is held there until it is fetched. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.request import Model
from proxy.admission.limits import Limits, Most
from proxy.admission.line import Entry


class Hands(NamedTuple):
    """How many nodes of each role a model's work can be shared among."""

    decode: int = 0
    prefill: int = 0


Nodes = Callable[[Model | None], Hands]


@dataclass(slots=True)
class AtWork:
    """Choices and the tokens of them and their prompts, of all or of a part."""

    choices: int = 0
    tokens: int = 0

    def fits(self, choices: int, tokens: int, most: Most) -> bool:
        """Whether so much more does; one that is larger than the limit goes alone."""
        if not self.choices:
            return True
        if most.requests is not None and self.choices + choices > most.requests:
            return False
        return most.tokens is None or self.tokens + tokens <= most.tokens

    def add(self, choices: int, tokens: int) -> None:
        """Or take away."""
        self.choices += choices
        self.tokens += tokens


@dataclass(slots=True)
class Pools:
    """Of every model the nodes' share of what is at work."""

    limits: Limits
    _decode: dict[Model | None, AtWork] = field(default_factory=dict)
    _prefill: dict[Model | None, AtWork] = field(default_factory=dict)

    def have_room(self, entry: Entry, hands: Hands) -> bool:
        """Where one role has no node its limits hold up nobody."""
        prompts = self._prefill.get(entry.model)
        if prompts and not prompts.fits(
            entry.choices, entry.prompt_tokens, self.limits.prefill_node.times(hands.prefill)
        ):
            return False
        answers = self._decode.get(entry.model)
        return (
            answers is None
            or not _decodes(entry, hands)
            or answers.fits(entry.choices, entry.tokens, self.limits.node.times(hands.decode))
        )

    def begin(self, entry: Entry, hands: Hands) -> None:
        """It goes to its nodes."""
        entry.decodes, entry.prefills = _decodes(entry, hands), True
        _book(self._prefill, entry.model, entry.choices, entry.prompt_tokens)
        if entry.decodes:
            _book(self._decode, entry.model, entry.choices, entry.tokens)

    def grow(self, entry: Entry, tokens: int) -> None:
        """So many more than was thought."""
        if entry.decodes:
            _book(self._decode, entry.model, 0, tokens)

    def ran(self, entry: Entry) -> bool:
        """Its prompt is run, or nobody will run it; whether it was not known yet."""
        known = not entry.prefills
        if not known:
            entry.prefills = False
            _book(self._prefill, entry.model, -entry.choices, -entry.prompt_tokens)
        return not known

    def end(self, entry: Entry) -> None:
        """Nothing of it is at any node."""
        self.ran(entry)
        if entry.decodes:
            _book(self._decode, entry.model, -entry.choices, -entry.tokens)


def _decodes(entry: Entry, hands: Hands) -> bool:
    """Vectors are made by prefill nodes, and elsewhere only where there is none."""
    return not (entry.pooled and hands.prefill)


def _book(
    pools: dict[Model | None, AtWork], model: Model | None, choices: int, tokens: int
) -> None:
    pool = pools.setdefault(model, AtWork())
    pool.add(choices, tokens)
    if not pool.choices:
        del pools[model]
