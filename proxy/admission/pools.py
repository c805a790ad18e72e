"""Load by model and role: answers at its decode nodes, prompts at its prefill nodes.

A prompt counts at prefill nodes until its answer's first token: it is run there, and its KV is
held until it is fetched. Several prompts of one request count one by one, as if all had the
same length. Pure.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from discovery.registration import Role
from engine.request import ModelKey
from proxy.admission.limits import AdmissionLimits, LoadLimit
from proxy.admission.queue import QueueEntry


class NodeCounts(NamedTuple):
    """The number of a model's nodes by role; `seats` are those of its decode nodes together.

    None: a node does not say how many it has, or nobody asks.
    """

    decode: int = 0
    prefill: int = 0
    seats: int | None = None


CountNodes = Callable[[ModelKey | None], NodeCounts]
PoolKey = tuple[Role, ModelKey | None]


@dataclass(slots=True)
class LoadInUse:
    """Running choices, and the tokens of the choices and their prompts."""

    choices: int = 0
    tokens: int = 0

    def fits(self, choices: int, tokens: int, most: LoadLimit) -> bool:
        """Whether this much more fits; a request larger than the limit may run alone."""
        if not self.choices:
            return True
        if most.requests is not None and self.choices + choices > most.requests:
            return False
        return most.tokens is None or self.tokens + tokens <= most.tokens

    def add(self, choices: int, tokens: int) -> None:
        """Add, or with negative numbers remove."""
        self.choices += choices
        self.tokens += tokens


@dataclass(slots=True)
class NodePools:
    """The running load of each model's nodes, by role."""

    limits: AdmissionLimits
    _pools: dict[PoolKey, LoadInUse] = field(default_factory=dict)

    def have_room(self, entry: QueueEntry, hands: NodeCounts, awaited: set[PoolKey]) -> bool:
        """Whether all pools that a request needs have room. A role without nodes has no limit.

        `awaited`: pools that requests before this one wait for, so this one may not use them.
        Pools that are too full for this one are added.
        """
        wanted = _wanted(entry, hands)
        if not awaited.isdisjoint(wanted):
            return False
        full = self.full(entry, hands)
        awaited.update(full)
        return not full

    def full(self, entry: QueueEntry, hands: NodeCounts) -> list[PoolKey]:
        """The pools that have no room for it."""
        return [one for one in _wanted(entry, hands) if not self._fits(one, entry, hands)]

    def choices_at(self, pool: PoolKey) -> int:
        """Running choices in this pool."""
        return self._pools[pool].choices

    def begin(self, entry: QueueEntry, hands: NodeCounts) -> None:
        """Count a request that starts."""
        entry.decodes, entry.unfinished_prompts = (
            _decodes(entry, hands),
            set(range(entry.choices)),
        )
        self._book(Role.PREFILL, entry, entry.choices, entry.prompt_tokens)
        if entry.decodes:
            self._book(Role.DECODE, entry, entry.choices, entry.tokens)

    def grow(self, entry: QueueEntry, tokens: int) -> None:
        """Add tokens beyond the estimate."""
        if entry.decodes:
            self._book(Role.DECODE, entry, 0, tokens)

    def prompt_finished(self, entry: QueueEntry, choice: int) -> bool:
        """The prompt of a choice was run; False if that was known before."""
        if choice not in entry.unfinished_prompts:
            return False
        before = _prompt_tokens(entry)
        entry.unfinished_prompts.remove(choice)
        self._book(Role.PREFILL, entry, -1, _prompt_tokens(entry) - before)
        return True

    def end(self, entry: QueueEntry) -> None:
        """Stop counting a request that ended."""
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
        most = self.limits.node.of(hands.decode, hands.seats)
        return at_work.fits(entry.choices, entry.tokens, most)

    def _book(self, role: Role, entry: QueueEntry, choices: int, tokens: int) -> None:
        pool = self._pools.setdefault((role, entry.model), LoadInUse())
        pool.add(choices, tokens)
        if not pool.choices:
            del self._pools[role, entry.model]


def waiting_for(
    pool: PoolKey, weight: Callable[[QueueEntry], int]
) -> Callable[[QueueEntry], int]:
    """A `weigh` that is 0 for requests that do not need this pool."""
    role, model = pool

    def weigh(entry: QueueEntry) -> int:
        waits = entry.model == model and not (entry.pooled and role is Role.DECODE)
        return weight(entry) if waits else 0

    return weigh


def _decodes(entry: QueueEntry, hands: NodeCounts) -> bool:
    """Whether it needs a decode node: pooling does so only where there is no prefill node."""
    return not (entry.pooled and hands.prefill)


def _wanted(entry: QueueEntry, hands: NodeCounts) -> tuple[PoolKey, ...]:
    prompts = Role.PREFILL, entry.model
    return (prompts, (Role.DECODE, entry.model)) if _decodes(entry, hands) else (prompts,)


def _prompt_tokens(entry: QueueEntry) -> int:
    """The tokens of its prompts that were not run yet."""
    return entry.prompt_tokens * len(entry.unfinished_prompts) // entry.choices
