"""What is at work at each model's nodes: answers where they decode, prompts where they prefill.

A prompt is its prefill node's until the first token of its answer is there: it is run, and its
KV is held there until it is fetched. Of a request that has several, each goes by itself, as if
all were of one length. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from discovery.registration import Role
from engine.request import ModelKey
from proxy.admission.limits import AdmissionLimits, LoadLimit
from proxy.admission.queue import QueueEntry


class NodeCounts(NamedTuple):
    """How many nodes of each role a model's work can be shared among."""

    decode: int = 0
    prefill: int = 0


CountNodes = Callable[[ModelKey | None], NodeCounts]
PoolKey = tuple[Role, ModelKey | None]


@dataclass(slots=True)
class LoadInUse:
    """Choices and the tokens of them and their prompts, of all or of a part."""

    choices: int = 0
    tokens: int = 0

    def fits(self, choices: int, tokens: int, most: LoadLimit) -> bool:
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
class NodePools:
    """Of every model the nodes' share of what is at work."""

    limits: AdmissionLimits
    _pools: dict[PoolKey, LoadInUse] = field(default_factory=dict)

    def have_room(self, entry: QueueEntry, hands: NodeCounts, awaited: set[PoolKey]) -> bool:
        """Where one role has no node its limits hold up nobody.

        `awaited` are those that somebody waits for whose turn is before this one's: it gets
        nothing of them. Those that are too full for it are added.
        """
        wanted = _wanted(entry, hands)
        if not awaited.isdisjoint(wanted):
            return False
        full = self.full(entry, hands)
        awaited.update(full)
        return not full

    def full(self, entry: QueueEntry, hands: NodeCounts) -> list[PoolKey]:
        """Those that have no room for it."""
        return [one for one in _wanted(entry, hands) if not self._fits(one, entry, hands)]

    def choices_at(self, pool: PoolKey) -> int:
        """How many are at work there."""
        return self._pools[pool].choices

    def begin(self, entry: QueueEntry, hands: NodeCounts) -> None:
        """It goes to its nodes."""
        entry.decodes, entry.unfinished_prompts = (
            _decodes(entry, hands),
            set(range(entry.choices)),
        )
        self._book(Role.PREFILL, entry, entry.choices, entry.prompt_tokens)
        if entry.decodes:
            self._book(Role.DECODE, entry, entry.choices, entry.tokens)

    def grow(self, entry: QueueEntry, tokens: int) -> None:
        """So many more than was thought."""
        if entry.decodes:
            self._book(Role.DECODE, entry, 0, tokens)

    def prompt_finished(self, entry: QueueEntry, choice: int) -> bool:
        """The prompt of one of its choices is run; whether that was not known yet."""
        if choice not in entry.unfinished_prompts:
            return False
        before = _prompt_tokens(entry)
        entry.unfinished_prompts.remove(choice)
        self._book(Role.PREFILL, entry, -1, _prompt_tokens(entry) - before)
        return True

    def end(self, entry: QueueEntry) -> None:
        """Nothing of it is at any node."""
        if entry.unfinished_prompts:
            self._book(
                Role.PREFILL, entry, -len(entry.unfinished_prompts), -_prompt_tokens(entry)
            )
            entry.unfinished_prompts.clear()
        if entry.decodes:
            self._book(Role.DECODE, entry, -entry.choices, -entry.tokens)

    def _fits(self, pool: PoolKey, entry: QueueEntry, hands: NodeCounts) -> bool:
        at_work = self._pools.get(pool)
        if at_work is None:
            return True
        if pool[0] is Role.PREFILL:
            most = self.limits.prefill_node.times(hands.prefill)
            return at_work.fits(entry.choices, entry.prompt_tokens, most)
        return at_work.fits(entry.choices, entry.tokens, self.limits.node.times(hands.decode))

    def _book(self, role: Role, entry: QueueEntry, choices: int, tokens: int) -> None:
        pool = self._pools.setdefault((role, entry.model), LoadInUse())
        pool.add(choices, tokens)
        if not pool.choices:
            del self._pools[role, entry.model]


def waiting_for(
    pool: PoolKey, weight: Callable[[QueueEntry], int]
) -> Callable[[QueueEntry], int]:
    """The weight of those that wait for these nodes; of others, none."""
    role, model = pool

    def weigh(entry: QueueEntry) -> int:
        waits = entry.model == model and not (entry.pooled and role is Role.DECODE)
        return weight(entry) if waits else 0

    return weigh


def _decodes(entry: QueueEntry, hands: NodeCounts) -> bool:
    """Vectors are made by prefill nodes, and elsewhere only where there is none."""
    return not (entry.pooled and hands.prefill)


def _wanted(entry: QueueEntry, hands: NodeCounts) -> tuple[PoolKey, ...]:
    prompts = Role.PREFILL, entry.model
    return (prompts, (Role.DECODE, entry.model)) if _decodes(entry, hands) else (prompts,)


def _prompt_tokens(entry: QueueEntry) -> int:
    """Of prompts that are not known to have been run."""
    return entry.prompt_tokens * len(entry.unfinished_prompts) // entry.choices
