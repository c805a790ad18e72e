"""Choices of one request go where the first one went, and requests of others do not."""

from discovery.registration import Registration, Role
from discovery.registry import Node
from engine.request import Request, RequestId, Sampling
from proxy.routing.policies import RoundRobin
from proxy.routing.siblings import MOST_KNOWN, TogetherPolicy


def nodes(count: int) -> list[Node]:
    return [
        Node(Registration(Role.DECODE, f"d{number}:80", "", f"d{number}"), 0.0)
        for number in range(count)
    ]


def ask(name: str, sample: int = 0, seed: int = 1) -> Request:
    return Request(RequestId(name), (1,), Sampling(seed=seed, sample_index=sample))


def test_choices_of_one_request_go_together() -> None:
    policy, some = TogetherPolicy(RoundRobin()), nodes(3)
    for outer in ("chat", "other"):
        chosen = {policy.choose(some, ask(f"{outer}-{n}", n), None) for n in range(4)}
        assert len(chosen) == 1


def test_requests_of_one_name_do_not() -> None:
    policy, some = TogetherPolicy(RoundRobin()), nodes(3)
    chosen = [policy.choose(some, ask(name), None) for name in ("chat-0", "chat-0", "chat")]
    assert len(set(chosen)) == 3
    assert policy.choose(some, ask("chat-1", 1, seed=2), None) is some[0]


def test_a_node_that_is_gone_is_not_waited_for() -> None:
    policy, some = TogetherPolicy(RoundRobin()), nodes(2)
    first = policy.choose(some, ask("chat-0"), None)
    rest = [node for node in some if node is not first]
    assert policy.choose(rest, ask("chat-1", 1), None) is rest[0]
    assert policy.choose(some, ask("chat-2", 2), None) is rest[0]  # nor left again


def test_what_is_remembered_is_bounded() -> None:
    policy = TogetherPolicy(RoundRobin())
    for number in range(3 * MOST_KNOWN):
        policy.choose(nodes(1), ask(f"{number}-0"), None)
    assert len(policy._chosen) == MOST_KNOWN
