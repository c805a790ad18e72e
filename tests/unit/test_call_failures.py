"""What a node's refusal, or an error of its connection, means for the request."""

import msgspec
import pytest

from discovery.node import Node
from discovery.registration import Registration, Role
from proxy.errors import Cause, NodeFailed
from proxy.nodes.failures import failure_of_error, failure_of_status

VLLM = Node(Registration(Role.DECODE, "h:1", ""), 0)


def refusal(status: int, **error: object) -> NodeFailed:
    return failure_of_status(VLLM, status, msgspec.json.encode({"error": error}))


@pytest.mark.parametrize(("status", "cause"), [(400, Cause.REFUSED), (500, Cause.NODE_ERROR)])
def test_a_node_of_vllm_says_itself_what_is_wrong(status: int, cause: Cause) -> None:
    failed = refusal(status, message="max_tokens is too large", param="max_tokens", code=status)
    assert str(failed).removeprefix("h:1: ") == "max_tokens is too large"
    assert (failed.cause, failed.param) == (cause, "max_tokens")


@pytest.mark.parametrize("status", [401, 403])
def test_unless_it_wants_a_key(status: int) -> None:
    failed = refusal(status, message="Unauthorized")
    assert "--foreign-api-key" in str(failed)
    assert "Unauthorized" not in str(failed)
    assert (failed.cause, failed.retryable) == (Cause.REFUSED, True)


def test_an_error_without_a_word_is_a_lost_connection() -> None:
    failed = failure_of_error(VLLM, ConnectionResetError())
    assert (str(failed), getattr(failed, "cause", None)) == (
        "h:1: connection lost",
        Cause.BROKEN,
    )
