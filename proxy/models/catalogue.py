"""Several models behind one door: a request's `model` picks its pool of nodes."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from api.defaults import OPENAI
from api.errors import BadRequest, ModelNotFound, TooBusy
from api.reasoning.forms import OFF, ReasoningParser
from api.served import MAX_LOGPROBS, ServedModel
from api.tools.dialects.known import AUTO, ToolCallParser
from discovery.kinds import Model
from discovery.registration import Role
from discovery.registry import Registry
from engine.grammars.checking import GrammarChecker
from proxy.errors import NoNodeAvailable
from proxy.health.health import Health
from proxy.models.namesakes import Namesakes
from proxy.models.patience import LOOK_AGAIN_S, Patience
from proxy.models.pools import (
    Context,
    OwnNames,
    Pool,
    capacity,
    drawn,
    in_order,
    pools_of,
)
from proxy.models.texts import Text, Texts

WAYS = "start the proxy with --tokenizer, or send and ask for token ids"
MOST_NAMED = 8  # of models, in a message
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Own:
    """What the proxy's settings say of their own model, or of all: see ProxyConfig.

    `text`, `max_model_len` and the parsers go before what nodes say. Without any name they are
    for all models, the text for those that bring none.
    """

    names: OwnNames
    text: Text | None = None
    max_model_len: int | None = None
    max_logprobs: int = MAX_LOGPROBS
    tool_call_parser: ToolCallParser = AUTO
    reasoning_parser: ReasoningParser = OFF


@dataclass(slots=True)
class Catalogue:
    """The Models of a proxy: what live nodes serve.

    A model whose nodes are all gone is known for `wait_s` more, so that its requests wait for
    nodes instead of being told that it does not exist. They wait for text as `patience` says;
    those that need none as well, as their defaults come with it, but not beyond a failure.
    `run` has to run for text to come.
    """

    registry: Registry
    texts: Texts
    own: Own
    grammars: GrammarChecker
    health: Health
    patience: Patience = field(default_factory=Patience)
    clock: Callable[[], float] = time.monotonic
    created: int = field(default_factory=lambda: int(time.time()))
    _seen: tuple[int, int] | None = None
    _pools: dict[Model, Pool] = field(default_factory=dict)
    _live: frozenset[Model] = frozenset()
    _served: dict[Model, ServedModel] = field(default_factory=dict)
    _namesakes: Namesakes = field(default_factory=Namesakes)

    async def find(
        self,
        asked: str | None,
        outer_id: str,
        *,
        text: bool = True,
        timeout_s: float | None = None,
    ) -> ServedModel:
        """See Models; raises NoNodeAvailable where nobody has said yet what it serves."""

        def found() -> ServedModel:
            return self._find(asked, outer_id, text=text)

        try:
            return await self.patience.wait(found, timeout_s)
        except TooBusy:
            if text:
                raise
            return self._find(asked, outer_id, text=False, waits=False)

    def listed(self) -> Sequence[ServedModel]:
        """See Models: what live nodes serve."""
        self._look()
        return [self._served[key] for key in self._pools if key in self._live]

    def pools(self) -> Sequence[Pool]:
        """The pools that are served, and those whose nodes are lately gone."""
        self._look()
        return list(self._pools.values())

    async def run(self) -> None:
        """Load the text of every pool that needs it, until cancelled."""
        loading = dict[str, asyncio.Task[None]]()
        async with asyncio.TaskGroup() as tasks:
            while True:
                for digest, addresses in self.wanted().items():
                    if digest not in loading:
                        get = self.texts.get(digest, addresses, now=self.clock())
                        loading[digest] = tasks.create_task(get)
                await asyncio.sleep(LOOK_AGAIN_S)
                loading = {name: task for name, task in loading.items() if not task.done()}

    def wanted(self) -> dict[str, list[str]]:
        """The digests that are worth a try now, and who names them."""
        self._look()
        now, found = self.clock(), dict[str, list[str]]()
        for pool in self._pools.values():
            if digest := self._missing(pool, now):
                found[digest] = []
        for node in self.registry.all() if found else ():
            said = node.registration
            if said.text_digest in found:
                found[said.text_digest].append(said.http_address)
        return found

    def _missing(self, pool: Pool, now: float) -> str | None:
        """What to get next for a pool: the first that is worth a try, until one is had."""
        if self._has_own(pool):
            return None
        for digest in pool.digests:
            if self.texts.find((digest,)):
                return None
            if self.texts.due(digest, now):
                return digest
        return None

    def _find(
        self, asked: str | None, outer_id: str, *, text: bool, waits: bool = True
    ) -> ServedModel:
        self._look()
        if not self._pools:
            raise NoNodeAvailable("no node has said yet what it serves")
        known_still = self._known_still()
        name = asked or self._default(known_still)
        named = [self._served[pool.key] for pool in known_still if name in pool.names]
        if not named:
            known = sorted({one for key in self._live for one in self._pools[key].names})
            others = ", ".join(known[:MOST_NAMED])
            said = f"The model `{name}` does not exist. There are: {others}"
            raise ModelNotFound(said, "model")
        if waits and not text and (coming := next(filter(self._comes, named), None)):
            raise TooBusy(coming.no_text)
        return self._share(_able(named, text=text), outer_id)

    def _comes(self, served: ServedModel) -> bool:
        """Whether its text is on its way, and nothing has been wrong with it so far."""
        if served.codec is not None or not served.pending or served.key is None:
            return False
        digests = self._pools[served.key].digests
        return not any(self.texts.trouble(one) for one in digests)

    def _known_still(self) -> list[Pool]:
        """Those that are served, or were lately: heartbeats alone have nobody forgotten."""
        now = self.clock()
        return [
            pool
            for key, pool in self._pools.items()
            if key in self._live or pool.own or self._lately(key, now)
        ]

    def _default(self, pools: Sequence[Pool]) -> str:
        """What is meant by a client that names no model; raises BadRequest."""
        firsts = {pool.names[0] for pool in pools}
        if self.own.names.models:
            return self.own.names.told[0]
        if not firsts:
            raise NoNodeAvailable("nobody serves any model now")
        if len(firsts) > 1:
            listed = ", ".join(sorted(firsts)[:MOST_NAMED])
            raise BadRequest(f"model is missing; there are: {listed}", "model")
        return firsts.pop()

    def _share(self, able: Sequence[ServedModel], outer_id: str) -> ServedModel:
        """One of those that go by a name, by what they have to serve with."""
        if len(able) == 1:
            return able[0]
        found = {one.key: (one, self._capacity(one)) for one in able if one.key is not None}
        best = max(level for _, (level, _) in found.values())
        shares = [(key, max(n, 1)) for key, (_, (level, n)) in found.items() if level == best]
        return found[drawn(outer_id, shares)][0]

    def _capacity(self, served: ServedModel) -> tuple[int, int]:
        assert served.key is not None
        generates = served.pooling is None or served.pooling.generates
        known = self.registry, self.health, served.key
        return capacity(*known, now=self.clock(), generates=generates)

    def _look(self) -> None:
        """Take in what has changed."""
        seen = self.registry.changes, self.texts.changes
        if seen == self._seen:
            return
        self._seen, now = seen, self.clock()
        live = pools_of(self.registry.all(), self.own.names)
        left = {key: pool for key, pool in self._pools.items() if self._lately(key, now)}
        self._pools, self._live = in_order(left | live), frozenset(live)
        if self.own.names.models and not any(pool.own for pool in self._pools.values()):
            self._pools[self._alone.key] = self._alone
        self._served = {key: self._serve(pool) for key, pool in self._pools.items()}
        named = (digest for pool in self._pools.values() for digest in pool.digests)
        self.texts.forget(frozenset(named))
        self._namesakes.tell(self._pools[key] for key in self._pools if key in live)

    @property
    def _alone(self) -> Pool:
        """The model of the settings, while no node serves any."""
        names = self.own.names.told
        return Pool((names[0], None), names, own=True)

    def _lately(self, key: Model, now: float) -> bool:
        seen = [self.registry.last_seen(role, key) for role in Role]
        latest = max((at for at in seen if at is not None), default=None)
        return latest is not None and now - latest <= self.patience.wait_s

    def _text_of(self, pool: Pool) -> Text | None:
        """What is said to the proxy goes first, for the model that it is about."""
        return self.own.text if self._has_own(pool) else self.texts.find(pool.digests)

    def _has_own(self, pool: Pool) -> bool:
        if self.own.text is None:
            return False
        return pool.own if self.own.names.models else not pool.digests

    def _is_meant(self, pool: Pool) -> bool:
        """What the settings say is for it."""
        return pool.own or not self.own.names.models

    def _limit(self, pool: Pool) -> int | None:
        return self.own.max_model_len if self._is_meant(pool) else None

    def _without(self, pool: Pool) -> tuple[str, bool]:
        """Why a pool has no text, and whether that will pass."""
        name = f"`{pool.names[0]}`"
        if not pool.digests:
            why = "are not pdserve's, and bring" if pool.foreign else "have"
            reason = f"The nodes of {name} {why} no tokenizer to give: {WAYS}"
            return reason, False
        found = [self.texts.trouble(digest) for digest in pool.digests]
        troubles = [one for one in found if one is not None]
        if len(troubles) == len(found) and all(one.try_at is None for one in troubles):
            reason = f"The text files of {name} cannot be used: {troubles[0].reason}; {WAYS}"
            return reason, False
        lately = f" ({troubles[0].reason})" if troubles else ""
        return f"The text files of {name} are on their way{lately}", True

    def _serve(self, pool: Pool) -> ServedModel:
        text, limit = self._text_of(pool), self._limit(pool)
        context = Context(self.registry, pool.key)
        reason, pending = self._without(pool)
        is_meant = self._is_meant(pool)
        return ServedModel(
            pool.names,
            text.codec if text else None,
            lambda: limit or context.shortest(now=self.clock()),
            created=self.created,
            root=pool.key[0],
            defaults=text.defaults if text else OPENAI,
            max_logprobs=self.own.max_logprobs,
            tool_call_parser=self.own.tool_call_parser if is_meant else AUTO,
            reasoning_parser=self.own.reasoning_parser if is_meant else OFF,
            pooling=text.pooling if text else None,
            grammars=self.grammars,
            key=pool.key,
            no_text=reason,
            pending=pending,
        )


def _able(named: Sequence[ServedModel], *, text: bool) -> list[ServedModel]:
    """Those that can do it; raises the reason where none can, one that will pass first."""
    able = [one.ready(text=False) for one in named if one.codec is not None or not text]
    return able or [max(named, key=lambda one: one.pending).ready(text=text)]
