"""Limits in as few words as a test has for them."""

from proxy.admission.limits import QUEUED, AdmissionLimits, Auto, LoadLimit, NodeLimit


def limits(
    *,
    requests: int | None = None,
    tokens: int | None = None,
    node_requests: int | Auto | None = None,
    node_tokens: int | None = None,
    prefill_requests: int | None = None,
    prefill_tokens: int | None = None,
    queued: int | None = None,
    node_queued: int | None = None,
) -> AdmissionLimits:
    """Of all, of each decode node, of each prefill node, and of the line."""
    return AdmissionLimits(
        all=LoadLimit(requests, tokens),
        node=NodeLimit(node_requests, node_tokens),
        prefill_node=LoadLimit(prefill_requests, prefill_tokens),
        queued=QUEUED if queued is None else queued,
        node_queued=node_queued,
    )
