"""What a proxy tells of itself, whichever worker answers: what each says, added up."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from proxy.workers.api import METRICS, STATUS, TIMELINE, Siblings
from proxy.workers.pages import merged

BREAKERS = ("closed", "half_open", "open")
Said = dict[str, Any]


@dataclass(slots=True)
class Told:
    """`offer` first: what this worker says, to clients and to the others."""

    siblings: Siblings
    _status: Callable[[], Said] = dict
    _page: Callable[[], bytes] = bytes
    _timeline: Callable[[str, str | None], Said | None] = lambda _name, _owner: None

    def offer(self, status: Callable[[], Said], page: Callable[[], bytes]) -> None:
        """From now on this is asked when somebody wants to know."""
        self._status, self._page = status, page
        self.siblings.answers[STATUS] = lambda _: msgspec.json.encode(status())
        self.siblings.answers[METRICS] = lambda _: page()

    def offer_timelines(self, find: Callable[[str, str | None], Said | None]) -> None:
        """The same of what happened to one request, by its name and its owner."""

        def answer(subject: str) -> bytes | None:
            found = find(*msgspec.json.decode(subject, type=tuple[str, str | None]))
            return msgspec.json.encode(found) if found else None

        self._timeline = find
        self.siblings.answers[TIMELINE] = answer

    async def timeline(self, name: str, owner: str | None) -> Said | None:
        """Of a request that any of the workers has answered; None: nobody knows it."""
        if found := self._timeline(name, owner):
            return found
        subject = msgspec.json.encode((name, owner)).decode()
        for body in await self.siblings.ask(TIMELINE, subject):
            found = msgspec.json.decode(body)
        return found

    async def status(self) -> Said:
        """The cluster, as all workers together know it."""
        others = await self.siblings.ask(STATUS)
        return added_up(self._status(), map(msgspec.json.decode, others))

    async def page(self) -> bytes:
        """The metrics of all."""
        others: Sequence[bytes] = await self.siblings.ask(METRICS)
        return merged([self._page(), *others]) if others else self._page()


def added_up(own: Said, others: Iterable[Said]) -> Said:
    """Of nodes the view of the worker that answers, with the failures that all have met.

    Of breakers, those of nodes and of pairs, the one counts that lets least through.
    """
    nodes = {node["http_address"]: node for node in own["nodes"]}
    pairs = {_pair(one): one for one in own["pairs"]}
    for said in others:
        own["requests_in_flight"] += said["requests_in_flight"]
        for theirs in said["nodes"]:
            if node := nodes.get(theirs["http_address"]):
                node["failures"] += theirs["failures"]
                _worse(node, theirs)
                node["trouble"] = node["trouble"] or theirs["trouble"]
        for theirs in said["pairs"]:
            _worse(pairs.setdefault(_pair(theirs), theirs), theirs)
    own["pairs"] = list(pairs.values())
    return own


def _worse(one: Said, other: Said) -> None:
    one["breaker"] = max(one["breaker"], other["breaker"], key=BREAKERS.index)


def _pair(said: Said) -> tuple[str, str]:
    return said["prefill_node_id"], said["decode_node_id"]
