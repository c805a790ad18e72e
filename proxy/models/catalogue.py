"""Several models behind one proxy: a request's `model` picks its pool of nodes."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from api.defaults import OPENAI
from api.errors import BadRequest, ModelNotFound, TooBusy
from api.reasoning.formats import OFF, ReasoningParser
from api.served import MAX_LOGPROBS, ServedModel
from api.tools.dialects.known import AUTO, ToolCallParser
from discovery.kinds import Model
from discovery.registration import Role
from discovery.registry import Registry
from engine.grammars.checking import GrammarChecker
from proxy.errors import NoNodeAvailable
from proxy.health.health import Health
from proxy.models.ambiguous_names import AmbiguousNames
from proxy.models.model_pools import (
    ConfiguredNames,
    ContextLimit,
    ModelPool,
    capacity,
    model_pools,
    pick_model,
    sorted_by_model,
)
from proxy.models.model_wait import RETRY_S, ModelWait
from proxy.models.text_store import ModelText, ModelTextStore

WITHOUT_TEXT = "start the proxy with --tokenizer, or send and ask for token ids"
ANOTHERS_TEXT = "this proxy's --tokenizer is for `{}`; do they serve it under that name?"
MOST_NAMED = 8  # of models, in a message


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The proxy's settings of its configured model, or of all models: see ProxyConfig.

    `text`, `max_model_len` and the parsers override what nodes register. Without names they
    are for all models, and the text for models whose nodes have none.
    """

    names: ConfiguredNames
    text: ModelText | None = None
    max_model_len: int | None = None
    max_logprobs: int = MAX_LOGPROBS
    tool_call_parser: ToolCallParser = AUTO
    reasoning_parser: ReasoningParser = OFF


@dataclass(slots=True)
class Catalogue:
    """The Models of a proxy: what live nodes serve.

    A model whose nodes are all gone stays known for `wait_s`, so that its requests wait for
    nodes instead of being refused. Requests wait for a model's text as `model_wait` says; so do
    those that need only its sampling defaults, unless loading has failed. `run` loads texts.
    """

    registry: Registry
    texts: ModelTextStore
    settings: ModelSettings
    grammars: GrammarChecker
    health: Health
    model_wait: ModelWait = field(default_factory=ModelWait)
    clock: Callable[[], float] = time.monotonic
    created: int = field(default_factory=lambda: int(time.time()))
    _seen: tuple[int, int] | None = None
    _pools: dict[Model, ModelPool] = field(default_factory=dict)
    _live: frozenset[Model] = frozenset()
    _served: dict[Model, ServedModel] = field(default_factory=dict)
    _ambiguous: AmbiguousNames = field(default_factory=AmbiguousNames)

    async def find(
        self,
        asked: str | None,
        outer_id: str,
        *,
        text: bool = True,
        timeout_s: float | None = None,
    ) -> ServedModel:
        """See Models; raises NoNodeAvailable while no node has registered a model."""

        def found() -> ServedModel:
            return self._find(asked, outer_id, text=text)

        try:
            return await self.model_wait.wait(found, timeout_s)
        except TooBusy:
            if text:
                raise
            return self._find(asked, outer_id, text=False, waits=False)

    def listed(self) -> Sequence[ServedModel]:
        """See Models: what live nodes serve."""
        self._update()
        return [self._served[key] for key in self._pools if key in self._live]

    def pools(self) -> Sequence[ModelPool]:
        """The pools that are served now, and those whose nodes are recently gone."""
        self._update()
        return list(self._pools.values())

    async def run(self) -> None:
        """Load the text of every pool that needs it, until cancelled."""
        loading = dict[str, asyncio.Task[None]]()
        async with asyncio.TaskGroup() as tasks:
            while True:
                for digest, addresses in self.wanted().items():
                    if digest not in loading:
                        get = self.texts.fetch(digest, addresses, now=self.clock())
                        loading[digest] = tasks.create_task(get)
                await asyncio.sleep(RETRY_S)
                loading = {name: task for name, task in loading.items() if not task.done()}

    def wanted(self) -> dict[str, list[str]]:
        """The digests to fetch now, each with the addresses of nodes that have it."""
        self._update()
        now, found = self.clock(), dict[str, list[str]]()
        for pool in self._pools.values():
            if digest := self._missing(pool, now):
                found[digest] = []
        for node in self.registry.all() if found else ():
            said = node.registration
            if said.text_digest in found:
                found[said.text_digest].append(said.http_address)
        return found

    def _missing(self, pool: ModelPool, now: float) -> str | None:
        """The digest to fetch next for a pool; None once one of its texts is loaded."""
        if self._uses_own_text(pool):
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
        self._update()
        if not self._pools:
            raise NoNodeAvailable("no node has said yet what it serves")
        recent = self._recent_pools()
        name = asked or self._default(recent)
        named = [self._served[pool.key] for pool in recent if name in pool.all_names]
        if not named and not self._live:
            raise NoNodeAvailable("nobody serves any model now")
        if not named:
            known = sorted({one for key in self._live for one in self._pools[key].all_names})
            others = ", ".join(known[:MOST_NAMED])
            said = f"The model `{name}` does not exist. There are: {others}"
            raise ModelNotFound(said, "model")
        if waits and not text and (coming := next(filter(self._is_coming, named), None)):
            raise TooBusy(coming.no_text)
        return self._share(_capable(named, text=text), outer_id)

    def _is_coming(self, served: ServedModel) -> bool:
        """Whether its text is being loaded and has not failed so far."""
        if served.codec is not None or not served.pending or served.key is None:
            return False
        digests = self._pools[served.key].digests
        return bool(digests) and not any(self.texts.failure(one) for one in digests)

    def _recent_pools(self) -> list[ModelPool]:
        """The pools that are served now, or were until recently."""
        now = self.clock()
        return [
            pool
            for key, pool in self._pools.items()
            if key in self._live or pool.own or self._was_served_lately(key, now)
        ]

    def _default(self, pools: Sequence[ModelPool]) -> str:
        """The model of a request that names none; raises BadRequest."""
        firsts = {pool.names[0] for pool in pools}
        if self.settings.names.models:
            return self.settings.names.client_names[0]
        if not firsts:
            raise NoNodeAvailable("nobody serves any model now")
        if len(firsts) > 1:
            listed = ", ".join(sorted(firsts)[:MOST_NAMED])
            raise BadRequest(f"model is missing; there are: {listed}", "model")
        return firsts.pop()

    def _share(self, able: Sequence[ServedModel], outer_id: str) -> ServedModel:
        """One of the pools of a name, in proportion to their capacity."""
        if len(able) == 1:
            return able[0]
        found = {one.key: (one, self._capacity(one)) for one in able if one.key is not None}
        best = max(level for _, (level, _) in found.values())
        shares = [(key, max(n, 1)) for key, (_, (level, n)) in found.items() if level == best]
        return found[pick_model(outer_id, shares)][0]

    def _capacity(self, served: ServedModel) -> tuple[int, int]:
        assert served.key is not None
        generates = served.pooling is None or served.pooling.generates
        known = self.registry, self.health, served.key
        return capacity(*known, now=self.clock(), generates=generates)

    def _update(self) -> None:
        """Apply changes of the registry and of texts."""
        seen = self.registry.changes, self.texts.changes
        if seen == self._seen:
            return
        self._seen, now = seen, self.clock()
        live = model_pools(self.registry.all(), self.settings.names)
        left = {
            key: pool for key, pool in self._pools.items() if self._was_served_lately(key, now)
        }
        self._pools, self._live = sorted_by_model(left | live), frozenset(live)
        if self.settings.names.models and not any(pool.own for pool in self._pools.values()):
            self._pools[self._configured_pool.key] = self._configured_pool
        self._served = {key: self._serve(pool) for key, pool in self._pools.items()}
        named = (digest for pool in self._pools.values() for digest in pool.digests)
        self.texts.forget(frozenset(named))
        self._ambiguous.log_new(self._pools[key] for key in self._pools if key in live)

    @property
    def _configured_pool(self) -> ModelPool:
        """The configured model's pool, while no node serves it."""
        names = self.settings.names.client_names
        return ModelPool((names[0], None), names, own=True)

    def _was_served_lately(self, key: Model, now: float) -> bool:
        seen = [self.registry.last_seen(role, key) for role in Role]
        latest = max((at for at in seen if at is not None), default=None)
        return latest is not None and now - latest <= self.model_wait.wait_s

    def _text_of(self, pool: ModelPool) -> ModelText | None:
        """The settings' text overrides that of nodes, for the configured model."""
        return (
            self.settings.text if self._uses_own_text(pool) else self.texts.find(pool.digests)
        )

    def _uses_own_text(self, pool: ModelPool) -> bool:
        if self.settings.text is None:
            return False
        return pool.own if self.settings.names.models else not pool.digests

    def _is_configured(self, pool: ModelPool) -> bool:
        """Whether the settings are for this pool."""
        return pool.own or not self.settings.names.models

    def _limit(self, pool: ModelPool) -> int | None:
        return self.settings.max_model_len if self._is_configured(pool) else None

    def _why_no_text(self, pool: ModelPool) -> tuple[str, bool]:
        """Why a pool has no text, and whether it is still expected."""
        name = f"`{pool.names[0]}`"
        if not pool.digests and pool.key not in self._live:
            return f"No node serves {name} now", True
        if not pool.digests:
            why = "are not pdserve's, and bring" if pool.foreign else "have"
            names, told = self.settings.names.client_names, self.settings.text is not None
            cure = ANOTHERS_TEXT.format(names[0]) if told else WITHOUT_TEXT
            reason = f"The nodes of {name} {why} no tokenizer to give: {cure}"
            return reason, False
        found = [self.texts.failure(digest) for digest in pool.digests]
        failures = [one for one in found if one is not None]
        if len(failures) == len(found) and all(one.try_at is None for one in failures):
            reason = (
                f"The text files of {name} cannot be used: {failures[0].reason}; {WITHOUT_TEXT}"
            )
            return reason, False
        lately = f" ({failures[0].reason})" if failures else ""
        return f"The text files of {name} are on their way{lately}", True

    def _serve(self, pool: ModelPool) -> ServedModel:
        text, limit = self._text_of(pool), self._limit(pool)
        context = ContextLimit(self.registry, pool.key)
        reason, pending = self._why_no_text(pool)
        is_meant = self._is_configured(pool)
        return ServedModel(
            pool.names,
            text.codec if text else None,
            lambda: limit or context.shortest(now=self.clock()),
            created=self.created,
            root=pool.key[0],
            defaults=text.defaults if text else OPENAI,
            max_logprobs=self.settings.max_logprobs,
            tool_call_parser=self.settings.tool_call_parser if is_meant else AUTO,
            reasoning_parser=self.settings.reasoning_parser if is_meant else OFF,
            pooling=text.pooling if text else None,
            grammars=self.grammars,
            key=pool.key,
            no_text=reason,
            pending=pending,
            adapters=pool.adapters,
        )


def _capable(named: Sequence[ServedModel], *, text: bool) -> list[ServedModel]:
    """Those that can serve the request; otherwise raises why, temporary reasons first."""
    able = [one.ready(text=False) for one in named if one.codec is not None or not text]
    return able or [max(named, key=lambda one: one.pending).ready(text=text)]
