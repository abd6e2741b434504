"""Ways to an address or a file outside, for kustomize and Helm on a machine without namespaces."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.rendering import isolation
from reconciler.adapters.rendering.tools import CommandLineRenderer
from reconciler.desired.sources.addresses import foreign_schema
from reconciler.desired.sources.requested import Tool
from reconciler.ports.rendering import RenderBuild, RenderError
from tests.cli.sourcefolders import BASE, CHART, CLASS, POOL, below, write
from tests.hostile.test_sources import (
    SECRET,
    SUBCHART,
    Listener,
    archive,
    findings,
    listener,
    needs_helm,
    needs_kustomize,
    work,
)
from tests.hostile.threats import Threat, attack

__all__ = ["listener", "work"]


@pytest.fixture(autouse=True)
def no_namespaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine where every program has the network."""
    monkeypatch.setattr(isolation, "_UNSHARE", ())
    isolation._isolation.cache_clear()
    yield
    isolation._isolation.cache_clear()


def builtin(kind: str, fields: str) -> str:
    return f"apiVersion: builtin\nkind: {kind}\nmetadata: {{name: x}}\n{fields}\n"


PATCH = builtin("PatchTransformer", "path: URL")
MAP = builtin("ConfigMapGenerator", "files: ['a=URL']")
PLUGIN_FOLDER = {"p/kustomization.yaml": "resources: [x.yaml]\n", "p/x.yaml": PATCH}
FLUX = {
    "apiVersion": "kustomize.toolkit.fluxcd.io/v1",
    "kind": "Kustomization",
    "metadata": {"name": "a", "namespace": "b"},
    "spec": {
        "path": "./n",
        "sourceRef": {"kind": "GitRepository", "name": "x"},
        "patches": [{"path": "URL", "target": {"kind": "NodePool"}}],
    },
}
ARGO = {
    "apiVersion": "argoproj.io/v1alpha1",
    "kind": "Application",
    "metadata": {"name": "a"},
    "spec": {
        "source": {"repoURL": "x", "path": "n", "kustomize": {"patches": [{"Path": "URL"}]}},
        "destination": {"namespace": "a"},
    },
}
SIMPLE = below("n", {"pool.yaml": POOL, "class.yaml": CLASS})
ROUTES: dict[str, dict[str, str]] = {
    "other letters": {"kustomization.yaml": "Resources: ['URL']\n"},
    "other letters below": {
        "kustomization.yaml": "resources: [base, n]\n",
        "n/kustomization.yaml": "reſources: ['URL']\n",
    },
    "other letters of a path": {
        "kustomization.yaml": "resources: [base]\npatches: [{Path: URL}]\n"
    },
    "other letters of files": {
        "kustomization.yaml": "configMapGenerator: [{name: a, FILES: [URL]}]\n"
    },
    "other letters of openapi": {"kustomization.yaml": "openapi: {Path: URL}\n"},
    "a file of that path": {
        "kustomization.yaml": "resources: ['URL']\n",
        "http:/127.0.0.1:PORT/a.yaml": POOL,
    },
    "a built-in transformer": {
        "kustomization.yaml": "resources: [base]\ntransformers: [x.yaml]\n", "x.yaml": PATCH,
    },
    "an inline generator": {
        "kustomization.yaml": f"resources: [base]\ngenerators: [{json.dumps(MAP)}]\n"
    },
    "a folder of transformers": {
        "kustomization.yaml": "resources: [base]\ntransformers: [p]\n", **PLUGIN_FOLDER,
    },
    "a folder of objects and transformers": {
        "kustomization.yaml": "resources: [base, p]\ntransformers: [p]\n", **PLUGIN_FOLDER,
    },
    "patches of Flux": {**SIMPLE, "flux.json": json.dumps(FLUX)},
    "patches of Argo CD": {**SIMPLE, "argo.json": json.dumps(ARGO)},
}  # fmt: skip


@needs_kustomize
@attack(Threat.RENDERING, "an address in any field of kustomize, with a network")
@pytest.mark.parametrize("route", ROUTES)
def test_no_address_reaches_kustomize(
    route: str, work: Path, listener: Listener, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards: ``misspelled_names``, ``is_address``, ``address_in_plugin``, ``overlay_refusals``."""
    url = f"http://127.0.0.1:{listener.port}/a.yaml"
    files = {**BASE, **ROUTES[route]}
    filled = {
        name.replace("PORT", str(listener.port)): text.replace("URL", url)
        for name, text in files.items()
    }
    write(work, filled)
    reported = {"remote-source", "unknown-field", "unread-source"}
    assert {f["code"] for f in findings(capsys)} & reported
    assert listener.connections == 0


@needs_kustomize
@attack(Threat.RENDERING, "an address of another machine, which no check has found")
def test_a_tool_finds_no_server_of_another_machine() -> None:
    """Guard: ``HTTP_PROXY`` in ``_environment``."""
    files = {"kustomization.yaml": b"resources: ['http://192.0.2.1/a.yaml']\n"}
    with pytest.raises(RenderError, match=r"proxyconnect tcp: dial tcp 127\.0\.0\.1:1"):
        CommandLineRenderer().render(RenderBuild(Tool.KUSTOMIZE, files, "."))


def schema(reference: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"role": {"$ref": reference}}}


@needs_helm
@attack(Threat.RENDERING, "a schema of a chart's values in a file outside, or on a server")
@pytest.mark.parametrize("place", ["chart", "dependency", "packed"])
@pytest.mark.parametrize("form", ["file", "server", "kind of schema"])
def test_a_schema_reads_nothing_outside_itself(
    form: str,
    place: str,
    work: Path,
    tmp_path: Path,
    listener: Listener,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guards: ``foreign_schema``, and ``--skip-schema-validation`` for archives."""
    url = f"http://127.0.0.1:{listener.port}/a.json"
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps({"const": SECRET}))
    written = {
        "file": schema(secret.as_uri()), "server": schema(url), "kind of schema": {"$schema": url},
    }[form]  # fmt: skip
    write(work, below("chart", CHART))
    content = json.dumps(written)
    name = "values.schema.json"
    if place == "packed":
        (work / "chart" / "charts").mkdir()
        packed = archive(
            SUBCHART | {f"sub/{name}": content.encode(), "sub/values.yaml": b"role: a"}
        )
        (work / "chart" / "charts" / "sub-1.0.0.tgz").write_bytes(packed)
    elif place == "dependency":
        files = {k.removeprefix("sub/"): v.decode() for k, v in SUBCHART.items()}
        write(work, below("chart/charts/sub", files | {name: content, "values.yaml": "role: a"}))
    else:
        write(work, {f"chart/{name}": content})
    found = findings(capsys)
    assert "render-failed" not in [f["code"] for f in found]
    assert place == "packed" or "remote-source" in [f["code"] for f in found]
    assert listener.connections == 0


def _helm_of(version: str, folder: Path) -> str:
    """Return a Helm of some version, which prints one object for every chart."""
    helm = folder / "helm"
    words = f"version) echo {version};; *) echo kind: A;;"
    helm.write_text(f"#!/bin/sh\ncase $1 in {words} esac\n")
    helm.chmod(0o755)
    return str(helm)


@attack(Threat.RENDERING, "a Helm whose templates tell a name server what they contain")
def test_a_helm_that_resolves_names_is_not_used(tmp_path: Path) -> None:
    """Guard: the least version of Helm in ``_VERSIONS``."""
    build = RenderBuild(Tool.HELM, {"c/Chart.yaml": b"name: a\n"}, "c")
    for version, is_used in (("v3.11.0", False), ("v3.12.0", True)):
        renderer = CommandLineRenderer({Tool.HELM: _helm_of(version, tmp_path)})
        if is_used:
            assert renderer.render(build) == b"kind: A\n"
        else:
            with pytest.raises(RenderError, match="too old"):
                renderer.render(build)


@attack(Threat.RENDERING, "a Helm that reads the schemas of packed dependencies in any case")
@pytest.mark.parametrize("version", ["v3.12.0", "v3.15.4"])
def test_a_helm_that_cannot_leave_out_schemas_is_not_used(version: str, tmp_path: Path) -> None:
    """Guard: ``_SKIPS_SCHEMAS``, the least version for archives."""
    renderer = CommandLineRenderer({Tool.HELM: _helm_of(version, tmp_path)})
    build = RenderBuild(Tool.HELM, {"c/Chart.yaml": b"name: a\n", "c/charts/d.tgz": b""}, "c")
    with pytest.raises(RenderError, match="too old") as refused:
        renderer.render(build)
    assert "at least 3.16 for packed dependencies" in refused.value.remedy
    without_archive = replace(build, files={"c/Chart.yaml": b"name: a\n"})
    assert renderer.render(without_archive) == b"kind: A\n"


@attack(Threat.RENDERING, "a schema of a chart's values that Helm reads although it is no JSON")
@pytest.mark.parametrize(
    "content",
    [b'{"title": "\xff", "$ref": "file:///a"}', b'{"$ref": "file:///a"} more', b"[" * 100_000],
)
def test_a_schema_that_cannot_be_read_is_not_given_to_helm(content: bytes) -> None:
    """Guard: ``foreign_schema``. The JSON of Go is no UTF-8 necessarily."""
    assert foreign_schema("chart/values.schema.json", content) is not None
    assert foreign_schema("chart/values.schema.json", b'{"$ref": "#/a"}') is None


@needs_helm
def test_a_schema_without_references_outside_is_checked(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = schema("#/$defs/a") | {"$schema": "http://json-schema.org/draft-07/schema#"}
    own["$defs"] = {"a": {"type": "integer"}}
    write(work, below("chart", CHART | {"values.schema.json": json.dumps(own)}))
    (failed,) = [f["message"] for f in findings(capsys) if f["code"] == "render-failed"]
    assert "want integer" in failed


LEAK = '{{ if .Values.stolen }}{{ fail (printf "%v" .Values.stolen) }}{{ end }}\n'


@needs_helm
@attack(Threat.RENDERING, "a values file whose name contains a comma and the path of another")
@pytest.mark.parametrize("form", ["{}", '"{}', '"{}"', 'a"",{}'])
@pytest.mark.parametrize("source", ["Argo CD", "reconciler.yaml"])
def test_the_name_of_a_values_file_is_one_path(
    source: str, form: str, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``_csv_field``. Helm splits the value of ``--values`` at commas."""
    (tmp_path / "values.yaml").write_text(f"stolen: {SECRET}\n")
    name = form.format(f"v,{tmp_path}/values.yaml")
    files = CHART | {name: "cpu: 9\n", name.partition(",")[0]: "", "templates/leak.yaml": LEAK}
    write(work, below("chart", files))
    if source == "Argo CD":
        where = {"repoURL": "x", "path": "chart", "helm": {"valueFiles": [name]}}
        spec = {"source": where, "destination": {"namespace": "a"}}
        write(work, {"a.json": json.dumps({**ARGO, "spec": spec})})
    else:
        listed = [{"chart": "chart", "values": [f"chart/{name}"]}]
        write(work, {"reconciler.yaml": f"sources: {json.dumps(listed)}\n"})
    assert "render-failed" not in [f["code"] for f in findings(capsys)]


LEFT_OUT: dict[str, dict[str, Any]] = {
    "a values file on a server": {"valueFiles": ["values.yaml", "https://values.example/v.yaml"]},
    "a file as a parameter": {"fileParameters": [{"name": "role", "path": "role.txt"}]},
}


@attack(Threat.HIDDEN, "values that Argo CD passes to a chart, and that the plan lacks")
@pytest.mark.parametrize("helm", LEFT_OUT.values(), ids=LEFT_OUT)
def test_values_that_are_left_out_are_named(
    helm: dict[str, Any], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``_values_elsewhere``."""
    source = {"repoURL": "x", "path": "chart", "helm": helm}
    spec = {"source": source, "destination": {"namespace": "a"}}
    write(work, below("chart", CHART) | {"a.json": json.dumps({**ARGO, "spec": spec})})
    codes = {f["code"] for f in findings(capsys)}
    assert codes & {"remote-source", "unknown-variables"}
