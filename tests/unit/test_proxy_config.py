"""Settings that cannot be meant are refused by the flag's name."""

from dataclasses import fields
from typing import Any

import pytest

from proxy.admission.limits import LoadLimit
from proxy.config import ProxyConfig
from proxy.workers.process import worker_limits

OF_A_MODEL = {"max_model_len", "max_logprobs"}


def test_defaults_are_fine() -> None:
    config = ProxyConfig()
    assert (config.host, config.port, config.discovery_port) == ("127.0.0.1", 8000, 30001)
    assert config.text_folder is None


def test_nobody_waits_for_a_prefill_node_where_decode_nodes_may_run_prompts() -> None:
    limits: dict[str, Any] = {
        "max_requests_per_prefill_node": 3,
        "max_tokens_per_prefill_node": 500,
    }
    assert ProxyConfig(**limits).limits.prefill_node == LoadLimit(3, 500)
    assert ProxyConfig(**limits, local_prefill="auto").limits.none


def test_each_worker_has_its_part_of_every_limit() -> None:
    limits: dict[str, Any] = {
        field.name: 10
        for field in fields(ProxyConfig)
        if field.name.startswith("max_") and field.name not in OF_A_MODEL
    }
    part = worker_limits(ProxyConfig(workers=4, **limits))
    assert {name: getattr(part, name) for name in limits} == dict.fromkeys(limits, 3)


def test_seats_are_divided_node_by_node() -> None:
    config = worker_limits(ProxyConfig(workers=4, max_requests_per_node="auto"))
    assert (config.workers, config.node_limits.requests) == (4, "auto")
    assert not config.limits.none
    assert config.limits.of_nodes


def test_names_and_text_follow_the_model() -> None:
    assert ProxyConfig(model="m").names == ("m",)
    assert ProxyConfig(model="m", served_model_name=("a", "b")).names == ("a", "b")
    assert ProxyConfig(model="m").text_folder == "m"
    assert ProxyConfig(model="m", tokenizer="t").text_folder == "t"


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({"port": -1}, "--port"),
        ({"discovery_port": 65536}, "--discovery-port"),
        ({"tries": 0}, "--tries"),
        ({"max_requests_per_node": 0}, "--max-requests-per-node"),
        ({"max_queued_per_node": -1}, "--max-queued-per-node"),
        ({"recovery_wait_s": -0.1}, "--recovery-wait-s"),
        ({"recovery_wait_s": float("nan")}, "--recovery-wait-s"),
        ({"foreign_timeout_s": 0}, "--foreign-timeout-s"),
        ({"max_model_len": 0}, "--max-model-len"),
        ({"cluster_key": ""}, "--cluster-key"),
        ({"admin_api_key": ""}, "--admin-api-key"),
        ({"foreign_api_key": ""}, "--foreign-api-key"),
        ({"foreign_api_key": "a\r\nHost: b"}, "--foreign-api-key"),
        ({"api_key": ("a", "")}, "--api-key"),
        ({"allowed_origins": ("https://chat.example", "chat.example")}, "--allowed-origins"),
        ({"allowed_origins": ("",)}, "--allowed-origins"),
    ],
)
def test_refused(given: dict[str, Any], flag: str) -> None:
    with pytest.raises(ValueError, match=flag):
        ProxyConfig(**given)
