"""The Helm chart makes what Kubernetes takes, and what our processes take from it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from deploy.cli import parse
from discovery.address import parse_address
from node.config import NodeConfig
from proxy.config import ProxyConfig
from tests.fakes.chart import CHART, CONFIG, ROOT, Document, Pod, Refused, named, pods, render

ADDRESS = "10.1.2.3"
SECRETS = {
    "ours": {"cluster-key": "k" * 32, "keys.toml": '[[keys]]\nname = "web"\nkey = "sk-1"\n'},
    "certificate": {"tls.crt": "", "tls.key": ""},
}
FULL: dict[str, Any] = {
    "model": "/models/one",
    "servedModelNames": ["one", 'a "quoted" name'],
    "modelVolume": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    "secrets": {
        "clusterKey": {"name": "ours"},
        "apiKeys": {"name": "ours"},
        "tls": {"name": "certificate"},
    },
    "image": {"pullSecrets": [{"name": "registry"}]},
    "nodeSettings": {
        "max_num_seqs": 128,
        "lora_modules": ["sql=/models/sql"],
        "device": "cuda",
        "gpu_memory_utilization": 0.85,
        "enable_prefix_caching": True,
        "drain_timeout_s": 30,
    },
    "proxy": {
        "replicas": 3,
        "settings": {"policy": "least_loaded", "drain_timeout_s": 12.5, "drain_notice_s": 5},
        "service": {"type": "LoadBalancer", "port": 443, "annotations": {"one": "two"}},
        "annotations": {"three": "four"},
    },
    "prefill": {
        "replicas": 2,
        "settings": {"max_num_seqs": 8, "enable_prefix_caching": False},
        "resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "8", "memory": "64Gi"}},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "nodeSelector": {"gpu": "h200"},
        "env": [{"name": "HF_HOME", "value": "/models/hub"}],
    },
    "decode": {
        "replicas": 4,
        "settings": {"drain_timeout_s": 0, "speculative_config": '{"method": "ngram"}'},
    },
}
RELEASES = {"plain": {}, "full": FULL}
PROBES = "startup", "readiness", "liveness"
HOME = "/home/pdserve"
either = pytest.mark.parametrize("values", RELEASES.values(), ids=RELEASES)
Settings = ProxyConfig | NodeConfig


def settings_of(pod: Pod, documents: list[Document], folder: Path) -> Settings:
    """What its process has in the end, and would refuse if it could not be."""
    (folder / "pdserve.toml").write_text(pod.files(documents, SECRETS)[CONFIG])
    words = pod.arguments(pod.environment(ADDRESS, SECRETS))
    where = words.index("--config")
    assert words[where + 1] == CONFIG
    _, bound = parse(words[:where] + words[where + 2 :], folder / "pdserve.toml")
    settings: Settings = bound.arguments["config"]
    return settings


@either
@pytest.mark.parametrize("version", ["1.27", "1.37"])
def test_kubernetes_takes_it(values: Mapping[str, object], version: str) -> None:
    for document in render(values):
        used = kubernetes_validate.validate(document, version, strict=True)
        assert used == version  # not the schema of another one


@either
def test_processes_take_their_settings(values: Mapping[str, object], tmp_path: Path) -> None:
    documents = render(values)
    for pod in pods(documents):
        settings, ports = settings_of(pod, documents, tmp_path), pod.ports
        assert settings.host == "0.0.0.0"
        if isinstance(settings, ProxyConfig):
            assert ports == {"http": settings.port, "discovery": settings.discovery_port}
        else:
            assert ports == {"http": settings.port, "kv": settings.kv_port}
            assert settings.advertise_host == ADDRESS


@either
def test_nodes_register_with_every_proxy(values: Mapping[str, object], tmp_path: Path) -> None:
    documents = render(values)
    every = list(pods(documents))
    names = {pod.name for pod in every if pod.component == "proxy"}
    [service] = {d["spec"]["serviceName"] for d in documents if d["kind"] == "StatefulSet"}
    assert named(documents, "Service", service)["spec"]["publishNotReadyAddresses"]
    for pod in every:
        settings = settings_of(pod, documents, tmp_path)
        if isinstance(settings, NodeConfig):
            told = [parse_address(proxy) for proxy in settings.proxy]
            assert {host for host, _ in told} == {f"{name}.{service}" for name in names}
            assert {port for _, port in told} == {30001}


def test_what_is_said_of_one_kind_comes_before_what_is_said_of_both(tmp_path: Path) -> None:
    documents = render(FULL)
    found = {pod.component: settings_of(pod, documents, tmp_path) for pod in pods(documents)}
    prefill, decode, proxy = found["prefill"], found["decode"], found["proxy"]
    assert isinstance(prefill, NodeConfig)
    assert isinstance(decode, NodeConfig)
    assert isinstance(proxy, ProxyConfig)
    assert (prefill.max_num_seqs, decode.max_num_seqs) == (8, 128)
    assert prefill.gpu_memory_utilization == decode.gpu_memory_utilization == 0.85
    assert decode.speculative_config == '{"method": "ngram"}'
    assert decode.served_model_name == ("one", 'a "quoted" name')
    assert prefill.lora_modules == decode.lora_modules == ("sql=/models/sql",)
    assert (prefill.enable_prefix_caching, decode.enable_prefix_caching) == (False, True)
    assert proxy.policy == "least_loaded"


def test_files_that_a_proxy_is_told_of_are_there(tmp_path: Path) -> None:
    documents = render(FULL)
    pod = next(pod for pod in pods(documents) if pod.component == "proxy")
    settings = settings_of(pod, documents, tmp_path)
    assert isinstance(settings, ProxyConfig)
    told = {settings.api_key_file, settings.ssl_certfile, settings.ssl_keyfile}
    assert told <= pod.files(documents, SECRETS).keys()
    assert {pod.container[f"{one}Probe"]["httpGet"]["scheme"] for one in PROBES} == {"HTTPS"}


@either
def test_a_pod_has_time_to_finish_its_streams(
    values: Mapping[str, object], tmp_path: Path
) -> None:
    documents = render(values)
    for pod in pods(documents):
        settings = settings_of(pod, documents, tmp_path)
        needed = settings.drain_timeout_s
        needed += settings.drain_notice_s if isinstance(settings, ProxyConfig) else 0
        assert 10 <= pod.spec["terminationGracePeriodSeconds"] - needed <= 20


@either
def test_nothing_in_a_pods_environment_is_a_setting_by_accident(
    values: Mapping[str, object],
) -> None:
    """Of a service named pdserve every pod would have PDSERVE_PORT=tcp://10.96.0.1:8000."""
    for pod in pods(render(values)):
        assert pod.spec["enableServiceLinks"] is False


@either
def test_selectors_find_their_pods_and_no_others(values: Mapping[str, object]) -> None:
    documents = render(values)
    every = list(pods(documents))
    for document in documents:
        if document["kind"] != "ConfigMap":
            selector = document["spec"]["selector"]
            wanted = selector.get("matchLabels", selector).items()
            found = {p.component for p in every if wanted <= p.metadata["labels"].items()}
            assert found == {document["metadata"]["labels"]["app.kubernetes.io/component"]}
    other = pods(render(values, "other"))
    assert not {pod.name for pod in every} & {pod.name for pod in other}


def test_pods_are_replaced_when_what_they_read_at_their_start_is_new() -> None:
    def sums(values: Mapping[str, object]) -> dict[str, str]:
        found = {pod.component: pod.metadata["annotations"] for pod in pods(render(values))}
        return {component: told["checksum/settings"] for component, told in found.items()}

    before, after = sums({}), sums({"prefill": {"settings": {"max_num_seqs": 7}}})
    assert [kind for kind in before if before[kind] != after[kind]] == ["prefill"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model": ""}, "model"),
        ({"decoder": {}}, "decoder"),
        ({"decode": {"replica": 3}}, "replica"),
        ({"secrets": {"clusterKey": "mine"}}, "clusterKey"),
        ({"proxy": {"replicas": 0}}, "replicas"),
        ({"nodeSettings": {"max-num-seqs": 3}}, "max-num-seqs"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(
    values: Mapping[str, object], reason: str
) -> None:
    with pytest.raises(Refused, match=reason):
        render(values)


def test_the_chart_has_our_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]


def test_image_and_chart_agree_on_the_user_and_the_home() -> None:
    image = (ROOT / "deploy" / "image" / "Dockerfile").read_text()
    for pod in pods(render()):
        user, group = (pod.spec["securityContext"][key] for key in ("runAsUser", "runAsGroup"))
        assert f"\nUSER {user}:{group}\nWORKDIR {HOME}\n" in image
        assert HOME in {mount["mountPath"] for mount in pod.container["volumeMounts"]}
