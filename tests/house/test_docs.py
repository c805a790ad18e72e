"""The pages and the code name the same things, and every path on a page leads somewhere."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import get_args

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from api import bodies, generate, generated, generator
from api.door.limiter import ConnectionFault, ConnectionLimiter
from api.fields import CHAT, COMPLETIONS, NODE_SAMPLING, POOLING
from api.pooling import bodies as pooled
from api.tools import deltas, functions, tool_choice
from deploy.cli import app
from discovery.registration import Load, Registration, Role
from discovery.registry import Registry
from engine.ranks.messages import RankMessage
from engine.request import ReasoningMarks, Sampling
from kv_transfer import ticket, wire
from kv_transfer.layout import KvLayout
from node import ipc
from node.metrics import NO_FAILURES, NO_REFUSALS, NodeMetrics
from proxy.admin.status import cluster_status
from proxy.admission.gate import AdmissionGate
from proxy.app import COUNTED
from proxy.errors import Cause
from proxy.health.health import Health
from proxy.observing.admission_metrics import AdmissionMetrics, ConnectionMetrics
from proxy.observing.metrics import ProxyMetrics
from proxy.workers.metrics_pages import worker_count_registry
from tests.fakes.exported import under_vllms_names

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "deploy/demo/README.md"]
NAMES = sorted(str(page.relative_to(ROOT)) for page in PAGES)
LONGEST_README = 150

FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
INDENTED = re.compile(r"^ {4}.*$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"(?P<path>[\w.-]+(?:/[\w.-]+)+\.(?:py|sh|md|toml))(?::(?P<name>\w+))?")
CLASS = re.compile(r"^class (\w+)(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
MEMBER = re.compile(r"\b([A-Z]\w+)\.([a-z]\w*)\b")
HISTORY = "docs/log.md"

COMMANDS = sorted(name for name in app if not name.startswith("-"))
STRUCTS: dict[str, list[type[msgspec.Struct]]] = {
    "node-call.md": [
        *(generate._Body, generate._Asks, generated.NodeChunk, generated.NodeChoice),
        *(generated.NodeError, generated._Extra, generated.NodeUsage, generated._Details),
        *(generator.PromptEvent, generator.StageEvent),
        *(ticket._Params, ticket._Ours, ticket.CacheHint, Sampling, ReasoningMarks),
    ],
    "registration.md": [Registration, Load, KvLayout],
    "api.md": [
        *(bodies.CompletionBody, bodies.ChatBody, bodies.RequestMessage),
        *(bodies.StreamOptions, bodies.PdserveOptions, functions.Tool, functions.Function),
        *(functions.CustomTool, functions.Custom, tool_choice.ToolName, tool_choice.NamedTool),
        *(tool_choice.NamedCustom, tool_choice.AllowedTools, tool_choice.Allowed),
        *(deltas.ToolCall, deltas.CalledFunction, deltas.CallDelta),
        *(deltas.CustomCall, deltas.CalledCustom),
    ],
    "pooling.md": [
        *(pooled.EmbeddingsBody, pooled.VectorsBody, pooled.ClassifyBody, pooled.ScoreBody),
        *(
            pooled.RerankBody,
            pooled.TokenTypes,
            pooled.PoolingUsage,
            pooled.PoolingItem,
            pooled.PoolingResponse,
        ),
    ],
}
MESSAGES = [wire.FromSink, wire.FromSource, ipc.ToEngine, ipc.FromEngine, RankMessage]
HONOURED = {
    "completions": set(bodies.CompletionBody.__struct_fields__),
    "chat": set(bodies.ChatBody.__struct_fields__),
    "node call": set(Sampling.__struct_fields__),
}
REFUSED: dict[str, Mapping[str, tuple[object, ...]]] = {
    "completions": COMPLETIONS,
    "chat": CHAT,
    "node call": NODE_SAMPLING,
}


LABELS: dict[str, Iterable[str]] = {
    "pdserve_kv_load_failures_total": NO_FAILURES,
    "pdserve_kv_connections_refused_total": NO_REFUSALS,
    "pdserve_proxy_requests_total": COUNTED,
    "pdserve_proxy_retries_total": Cause,
    "pdserve_proxy_connections_refused_total": [one.reason for one in ConnectionFault],
}


def read(page: str) -> str:
    return (ROOT / page).read_text()


def code_of(text: str) -> str:
    """What stands in backticks, fences and indented blocks."""
    prose = FENCE.sub("", text)
    return "\n".join([*FENCE.findall(text), *SPAN.findall(prose), *INDENTED.findall(prose)])


def table(text: str, heading: str) -> list[dict[str, str]]:
    """The rows of the first table under a heading, by the names of its columns."""
    section = re.split(rf"^## {heading}$", text, maxsplit=1, flags=re.MULTILINE)[1]
    lines = re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    return [dict(zip(head, row, strict=True)) for row in rows]


def metrics_of(registry: CollectorRegistry) -> Iterator[tuple[str, str]]:
    """The name and the kind of each, as they are scraped."""
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        yield name, family.type


def of_the_proxy() -> CollectorRegistry:
    metrics = ProxyMetrics(Registry(), Health(Registry()))
    metrics.all.register(AdmissionMetrics(AdmissionGate()))
    metrics.all.register(ConnectionMetrics(ConnectionLimiter()))
    return metrics.all


def test_metrics_are_those_that_are_scraped() -> None:
    page = read("docs/reference/metrics.md")
    for heading, registry in (
        ("Of a node", NodeMetrics().registry),
        ("Of a node, under vLLM's names", under_vllms_names()),
        ("Of the proxy", of_the_proxy()),
    ):
        told = {(row["metric"].strip("`"), row["kind"]) for row in table(page, heading)}
        assert told == set(metrics_of(registry))


@pytest.mark.parametrize("metric", LABELS)
def test_every_value_of_a_label_is_in_its_metric_s_row(metric: str) -> None:
    page = read("docs/reference/metrics.md")
    rows = table(page, "Of a node") + table(page, "Of the proxy")
    (row,) = [one for one in rows if one["metric"] == f"`{metric}`"]
    assert set(LABELS[metric]) <= set(SPAN.findall(row["meaning"]))


def test_pages_name_no_metric_that_is_not_there() -> None:
    registries = NodeMetrics().registry, of_the_proxy(), worker_count_registry(lambda: 1)
    known = {name for registry in registries for name, _ in metrics_of(registry)}
    named = {name for page in NAMES for name in re.findall(r"\bpdserve_[a-z_]+\b", read(page))}
    assert named <= known


@pytest.mark.parametrize("page", STRUCTS)
def test_every_field_on_the_wire_is_on_its_page(page: str) -> None:
    named = set(re.findall(r"\w+", code_of((REFERENCE / page).read_text())))
    missing = {name for kind in STRUCTS[page] for name in kind.__struct_fields__} - named
    assert not missing


@pytest.mark.parametrize("messages", MESSAGES)
def test_every_message_is_among_the_protocols(messages: UnionType) -> None:
    rows = table(read("docs/architecture.md"), "Protocols")
    told = {word for row in rows for word in re.findall(r"\w+", row["carries"])}
    assert {message.__name__ for message in get_args(messages)} <= told


def test_every_key_of_the_status_is_on_the_page() -> None:
    registry = Registry()
    registry.apply(Registration(Role.DECODE, "host:1", "host:2"), now=0.0)
    status = cluster_status(registry, Health(registry), now=0.0, in_flight=0)
    keys = {*status, *status["nodes"][0]}
    assert keys <= set(SPAN.findall(read("docs/reference/api.md")))


def test_refused_fields_are_told_for_each_door() -> None:
    rows = table(read("docs/reference/api.md"), "Request fields that are refused")
    told = {row["field"].strip("`"): row for row in rows}
    assert set(told) == {name for fields_ in REFUSED.values() for name in fields_}
    for name, row in told.items():
        for door, refused in REFUSED.items():
            honoured = "honoured" if name in HONOURED[door] else ""
            assert row[door] == ("refused" if name in refused else honoured), name
            for neutral in refused.get(name, ()):
                assert neutral is None or json.dumps(neutral) in row["neutral values"], name


def test_what_the_endpoints_of_vectors_refuse_is_on_their_page() -> None:
    (told,) = re.findall(
        r"refused by name.*?\n\n", read("docs/reference/pooling.md"), re.DOTALL
    )
    for name, neutral in POOLING.items():
        said = [f" (`{json.dumps(one)}`)" for one in neutral if one is not None]
        assert f"`{name}`{''.join(said)}" in told.replace("\n", " "), name


@pytest.mark.parametrize("page", NAMES)
def test_links_lead_somewhere(page: str) -> None:
    for link in LINK.findall(FENCE.sub("", read(page))):
        if not re.match(r"[a-z]+:", link):
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target.read_text()), link


@pytest.mark.parametrize("page", NAMES)
def test_files_that_are_named_exist(page: str) -> None:
    for found in FILE.finditer(code_of(read(page))):
        file = ROOT / found["path"]
        assert file.exists(), found[0]
        assert not found["name"] or re.search(rf"\b{found['name']}\b", file.read_text()), found[
            0
        ]


def test_members_of_classes_that_are_named_exist() -> None:
    bodies = defaultdict[str, str](str)
    for path in ROOT.glob("[a-z]*/**/*.py"):
        for name, body in CLASS.findall(path.read_text()):
            bodies[name] += body
    named = {
        (page, *found)
        for page in set(NAMES) - {HISTORY}
        for found in MEMBER.findall(code_of(read(page)))
    }
    missing = [
        (page, name, member)
        for page, name, member in named
        if name in bodies and not re.search(rf"\b{member}\b", bodies[name])
    ]
    assert not missing


@pytest.mark.parametrize("page", NAMES)
def test_commands_that_are_named_exist(page: str) -> None:
    code = code_of(read(page))
    targets = re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z]+)", code)) <= set(targets)
    assert set(re.findall(r"\bpdserve ([a-z]+)", code)) <= set(COMMANDS)


def test_every_decision_is_in_the_index_under_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    row = re.compile(r"^\| \[(\d{4})\]\((.+)\) \| (.+) \|$", re.MULTILINE)
    listed = row.findall((folder / "README.md").read_text())
    pages = sorted(folder.glob("[0-9]*.md"))
    titles = [re.findall(r"^# (\d{4}): (.+)", page.read_text())[0] for page in pages]
    assert listed == [
        (number, page.name, title) for page, (number, title) in zip(pages, titles, strict=True)
    ]
    assert [page.name[:5] for page in pages] == [f"{number}-" for number, _ in titles]
    assert len({number for number, _ in titles}) == len(titles)


@pytest.mark.parametrize("part", ["Context", "Decision", "Why", "Costs"])
def test_every_decision_has_all_parts(part: str) -> None:
    for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md"):
        assert f"\n**{part}.**" in page.read_text(), page.name


def test_the_readme_is_short() -> None:
    assert len(read("README.md").splitlines()) <= LONGEST_README


def _anchors(text: str) -> set[str]:
    """As they are made of headings."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
