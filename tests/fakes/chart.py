"""Our Helm chart as Kubernetes gets it, and what Kubernetes makes of it for a process."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "pdserve"
CONFIG = "/etc/pdserve/pdserve.toml"
GROWN = {"Deployment", "StatefulSet"}
VARIABLE = re.compile(r"\$\((\w+)\)")
Document = dict[str, Any]
Secrets = Mapping[str, Mapping[str, str]]  # what each holds, by name


class Refused(ValueError):
    """Helm renders nothing, with its reason."""


def render(values: Mapping[str, object] | None = None, release: str = "demo") -> list[Document]:
    """All documents, in Helm's order; raises Refused."""
    helm = Path(sys.executable).with_name("helm")
    command = [str(helm), "template", release, str(CHART), "--values", "-"]
    given = json.dumps(values or {})
    ran = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise Refused(ran.stderr)
    return [found for found in yaml.safe_load_all(ran.stdout) if found]


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod, with the one container that ours have."""

    name: str
    metadata: Document
    spec: Document

    @property
    def component(self) -> str:
        """proxy, prefill or decode."""
        return str(self.metadata["labels"]["app.kubernetes.io/component"])

    @property
    def container(self) -> Document:
        """Its only one."""
        [one] = self.spec["containers"]
        return dict(one)

    @property
    def ports(self) -> dict[str, int]:
        """Its ports by name."""
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    def environment(self, address: str, secrets: Secrets) -> dict[str, str]:
        """Its variables at this address; raises KeyError for a secret that is not there."""
        variables = self.container["env"]
        return {one["name"]: _value(one, address, secrets) for one in variables}

    def arguments(self, environment: Mapping[str, str]) -> list[str]:
        """What the image's entry point is given."""
        words: Sequence[str] = self.container["args"]
        return [VARIABLE.sub(lambda found: environment[found[1]], word) for word in words]

    def files(self, documents: Sequence[Document], secrets: Secrets) -> dict[str, str]:
        """The files that are mounted into it, by path."""
        found = dict[str, str]()
        volumes = {volume["name"]: volume for volume in self.spec["volumes"]}
        for mount in self.container["volumeMounts"]:
            for name, text in _content(volumes[mount["name"]], documents, secrets).items():
                if "subPath" not in mount:
                    found[f"{mount['mountPath']}/{name}"] = text
                elif mount["subPath"] == name:
                    found[mount["mountPath"]] = text
        return found


def pods(documents: Sequence[Document]) -> Iterator[Pod]:
    """All pods; those of a stateful set have names that stay."""
    for document in documents:
        if document["kind"] in GROWN:
            spec = document["spec"]
            for index in range(spec["replicas"]):
                name = f"{document['metadata']['name']}-{index}"
                yield Pod(name, spec["template"]["metadata"], spec["template"]["spec"])


def named(documents: Sequence[Document], kind: str, name: str) -> Document:
    """The one document of that kind and name."""
    [found] = [
        one for one in documents if (one["kind"], one["metadata"]["name"]) == (kind, name)
    ]
    return found


def _value(variable: Document, address: str, secrets: Secrets) -> str:
    if "value" in variable:
        return str(variable["value"])
    source = variable["valueFrom"]
    if "fieldRef" in source:
        assert source["fieldRef"] == {"fieldPath": "status.podIP"}
        return address
    secret = source["secretKeyRef"]
    return secrets[secret["name"]][secret["key"]]


def _content(
    volume: Document, documents: Sequence[Document], secrets: Secrets
) -> Mapping[str, str]:
    if "configMap" in volume:
        found = named(documents, "ConfigMap", volume["configMap"]["name"])
        data: dict[str, str] = found["data"]
        return data
    if "secret" not in volume:
        return {}
    held = secrets[volume["secret"]["secretName"]]
    if "items" not in volume["secret"]:
        return held
    return {item["path"]: held[item["key"]] for item in volume["secret"]["items"]}
