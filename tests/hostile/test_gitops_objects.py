"""Objects of Flux and Argo CD from a stranger: any value is a finding, or is read."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.git.trees import FolderTree
from reconciler.assembly.inputs.rendering import expand
from reconciler.desired.fleet import SourceFile
from reconciler.ports.rendering import RenderBuild
from tests.cli.sourcefolders import BASE, CHART, below, write
from tests.hostile.test_scheduler_files import ODD, places
from tests.hostile.threats import Threat, attack

SOURCE = {"kind": "GitRepository", "name": "flux-system"}
ARGO = {"repoURL": "https://example.com/fleet", "targetRevision": "HEAD"}
OBJECTS: dict[str, dict[str, Any]] = {
    "Kustomization": {
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1",
        "kind": "Kustomization",
        "metadata": {"name": "nodes", "namespace": "flux-system"},
        "spec": {
            "path": "./base",
            "sourceRef": SOURCE,
            "targetNamespace": "shop",
            "suspend": False,
            "components": ["../extra"],
            "postBuild": {"substitute": {"cpu": "8"}, "substituteFrom": [{"kind": "ConfigMap"}]},
            "patches": [{"patch": "- op: remove\n  path: /a", "target": {"kind": "NodePool"}}],
            "images": [{"name": "web", "newTag": "2"}],
        },
    },
    "HelmRelease": {
        "apiVersion": "helm.toolkit.fluxcd.io/v2",
        "kind": "HelmRelease",
        "metadata": {"name": "nodes", "namespace": "flux-system"},
        "spec": {
            "chart": {"spec": {"chart": "./chart", "sourceRef": SOURCE, "valuesFiles": ["v.yaml"]}},
            "releaseName": "nodes",
            "targetNamespace": "shop",
            "values": {"cpu": 8},
            "valuesFrom": [{"kind": "ConfigMap", "name": "values", "valuesKey": "values.yaml"}],
        },
    },
    "Application": {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Application",
        "metadata": {"name": "nodes", "namespace": "argocd"},
        "spec": {
            "destination": {"namespace": "shop", "server": "https://kubernetes.default.svc"},
            "sources": [
                {
                    **ARGO,
                    "path": "chart",
                    "helm": {
                        "releaseName": "nodes",
                        "valueFiles": ["values.yaml"],
                        "parameters": [{"name": "cpu", "value": "8"}],
                        "valuesObject": {"cpu": 8},
                    },
                },
                {**ARGO, "path": "base", "kustomize": {"namePrefix": "a-", "images": ["web:2"]}},
                {**ARGO, "ref": "values", "directory": {"recurse": True, "include": "*.yaml"}},
            ],
        },
    },
    "ApplicationSet": {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "ApplicationSet",
        "metadata": {"name": "all"},
        "spec": {
            "goTemplate": True,
            "generators": [
                {"list": {"elements": [{"name": "a", "folder": "base"}]}},
                {"git": {**ARGO, "directories": [{"path": "*"}, {"path": "x", "exclude": True}]}},
                {"matrix": {"generators": [{"list": {"elements": [{"b": "c"}]}}]}},
            ],
            "template": {
                "metadata": {"name": "{{.name}}"},
                "spec": {"source": {**ARGO, "path": "{{.folder}}"}, "destination": {}},
            },
        },
    },
}
WRITABLE = {name: odd for name, odd in ODD.items() if "digits" not in name}


class NothingRenderer:
    """Renders every source to nothing."""

    def render(self, build: RenderBuild) -> bytes:
        return b""


@pytest.fixture
def top(tmp_path: Path) -> Path:
    return write(tmp_path, {**BASE, **below("chart", CHART), "v.yaml": "cpu: 8\n"})


def findings_on(top: Path, data: object) -> list[str]:
    file = SourceFile("sync.yaml", json.dumps(data).encode())
    (top / "sync.yaml").write_bytes(file.content)
    found = expand([file], FolderTree(str(top)), ".", NothingRenderer())
    return [str(finding) for finding in found.findings]


@attack(Threat.EXHAUSTION, "an odd value anywhere in an object of Flux or Argo CD")
@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("odd", WRITABLE.values(), ids=WRITABLE)
def test_an_odd_object_of_gitops_is_read_or_a_finding(kind: str, odd: object, top: Path) -> None:
    for path in places(OBJECTS[kind]):
        data = copy.deepcopy(OBJECTS[kind])
        at: Any = data
        for step in path[:-1]:
            at = at[step]
        if path:
            at[path[-1]] = odd
        for finding in findings_on(top, data if path else odd):
            assert "\n" not in finding
            assert len(finding) < 2_000


@pytest.mark.parametrize("kind", OBJECTS)
def test_the_objects_of_the_attack_ask_for_sources(kind: str, top: Path) -> None:
    file = SourceFile("sync.yaml", json.dumps(OBJECTS[kind]).encode())
    (top / "sync.yaml").write_bytes(file.content)
    assert expand([file], FolderTree(str(top)), ".", NothingRenderer()).commands
