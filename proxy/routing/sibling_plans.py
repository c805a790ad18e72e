"""Sends all choices of a request to the same nodes: its prompt is run and moved once."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from discovery.node import Node
from engine.request import Request
from proxy.routing.cost_based import Partners
from proxy.routing.plan import Plan, PlanReason

MOST_KNOWN = 1024
Family = tuple[str, int]


@dataclass(slots=True)
class SiblingPlans:
    """Where the first of several choices went.

    Choices are recognised by what `api/text_requests.py` makes of one call: ids that differ in
    the number at their end, equal seeds, and a sample index for each but the first. If the
    first one's nodes are not available, a choice is planned anew; a full prefill node counts as
    available, since the prompt is there already.
    """

    _plans: dict[Family, tuple[str | None, str]] = field(default_factory=dict)

    def remember(self, request: Request, plan: Plan) -> None:
        """Give later choices of this request the same plan."""
        if family := _family(request):
            self._plans.pop(family, None)
            prefill = plan.prefill.node_id if plan.prefill else None
            self._plans[family] = prefill, plan.decode.node_id  # most recent last
            while len(self._plans) > MOST_KNOWN:
                del self._plans[next(iter(self._plans))]

    def plan(
        self, request: Request, decodes: Sequence[Node], partners: Partners
    ) -> Plan | None:
        """The plan of the request's first choice, if its nodes are still available."""
        family = _family(request)
        if family is None or not request.sampling.sample_index or family not in self._plans:
            return None
        prefill_id, decode_id = self._plans[family]
        decode = _find(decodes, decode_id)
        if decode is None or prefill_id is None:
            return Plan(None, decode, why=PlanReason.CHOICE) if decode else None
        prefill = _find(partners(decode), prefill_id)
        return Plan(prefill, decode, why=PlanReason.CHOICE) if prefill else None


def _family(request: Request) -> Family | None:
    outer_id, _, number = request.request_id.rpartition("-")
    return (outer_id, request.sampling.seed) if number.isdecimal() else None


def _find(nodes: Sequence[Node], node_id: str) -> Node | None:
    return next((node for node in nodes if node.node_id == node_id), None)
