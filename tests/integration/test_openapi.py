"""The proxy's own OpenAPI document, and what comes of asking all that it allows."""

import asyncio
import os
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.core.result import Ok

from discovery.registry import Registry
from proxy.openapi.operations import OPERATIONS
from tests.fakes.cluster import Cluster
from tests.fakes.http_cluster import ADMIN, HttpCluster, http_cluster

FEW = 12
EXAMPLES = int(os.environ.get("OPENAPI_EXAMPLES", FEW))  # of each operation
PATIENCE_S = 60
LONGEST_S = 3600  # nodes are known for so long, as nobody hears them
NO_NODES, TIME_IS_OVER = 503, 504
OPERATORS = {
    "InstanceBody": {"type", "instance", "bootstrap_port", "max_model_len"},
    "WorkerBody": {"url", "worker_type", "bootstrap_port", "max_model_len"},
    "DrainBody": {"force"},
    "RoleBody": {"force", "role"},
}


async def _document(proxy: HttpCluster) -> dict[str, Any]:
    status, data = await proxy.get("/openapi.json")
    assert status == 200
    said: dict[str, Any] = msgspec.json.decode(data)
    return said


async def test_every_route_is_in_the_document_and_nothing_else() -> None:
    async with http_cluster(Cluster()) as proxy:
        said = await _document(proxy)
        told = {(method, path) for path, ways in said["paths"].items() for method in ways}
        assert told == set(OPERATIONS)


async def test_schemas_have_names_of_their_own() -> None:
    """Two types of one name would be told by their modules, and so would clients' classes."""
    async with http_cluster(Cluster()) as proxy:
        said = await _document(proxy)
        assert not [name for name in said["components"]["schemas"] if "." in name]


async def test_bodies_are_told_field_by_field() -> None:
    async with http_cluster(Cluster()) as proxy:
        said = await _document(proxy)
        chat = said["components"]["schemas"]["ChatBody"]
        assert chat["required"] == ["messages"]
        assert {"temperature", "priority", "timeout"} <= chat["properties"].keys()
        efforts = {
            one
            for kind in chat["properties"]["reasoning_effort"]["anyOf"]
            for one in kind.get("enum", ())
        }
        assert efforts == {"none", "minimal", "low", "medium", "high", "xhigh", "max"}


async def test_the_bodies_of_operators_are_told_field_by_field() -> None:
    async with http_cluster(Cluster()) as proxy:
        said = (await _document(proxy))["components"]["schemas"]
        told = {name: said[name]["properties"].keys() for name in OPERATORS}
        assert told == OPERATORS


async def test_models_are_told_in_the_forms_of_both_kinds_of_clients() -> None:
    async with http_cluster(Cluster()) as proxy:
        told = (await _document(proxy))["paths"]["/v1/models"]["get"]
        assert {"message": []} in told["security"]
        assert [one["name"] for one in told["parameters"]] == ["anthropic-version"]
        for status, kinds in (
            ("200", "ModelList ModelPage"),
            ("401", "ErrorBody MessagesError"),
        ):
            schema = told["responses"][status]["content"]["application/json"]["schema"]
            names = [one["$ref"].rpartition("/")[2] for one in schema["anyOf"]]
            assert " ".join(names) == kinds


async def test_the_page_needs_nothing_from_elsewhere() -> None:
    async with http_cluster(Cluster()) as proxy:
        status, page = await proxy.get("/docs")
        assert status == 200
        assert b"openapi.json" in page
        assert b"http://" not in page
        assert b"https://" not in page


@pytest.mark.parametrize("nodes", [0, 1])
async def test_nothing_that_it_allows_makes_the_proxy_fail_or_hang(nodes: int) -> None:
    """Without nodes, what needs one is answered with 503, and what has no time left with 504;
    nothing else is a 5xx.
    """
    registry = Registry(ttl_s=LONGEST_S)
    async with http_cluster(Cluster(nodes, nodes), registry=registry) as proxy:
        document = await _document(proxy)
        tried = await asyncio.to_thread(_try_all, document, f"http://{proxy.url}", nodes)
        assert tried > EXAMPLES * 10
        assert (await proxy.get("/v1/models"))[0] == 200
        assert await proxy.settled() == 0


def _try_all(document: dict[str, Any], url: str, nodes: int) -> int:
    schema, tried = schemathesis.openapi.from_dict(document), 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            derandomize=EXAMPLES == FEW,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def once(case: Any) -> None:  # noqa: ANN401
            nonlocal tried
            tried += 1
            headers = {"X-API-Key": ADMIN}
            answer = case.call(base_url=url, headers=headers, timeout=PATIENCE_S)
            allowed = {NO_NODES: not nodes, TIME_IS_OVER: "Timed out" in answer.text}
            status = answer.status_code
            assert status < 500 or allowed.get(status), answer.text

        once()
    return tried
