"""``overlays --apply`` against a real API server: server-side apply, conflicts, ownership."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.cli.test_overlays import PLAN, PREFERENCE, PREFERRED, RESERVED, fleet, write_pool
from tests.live.plane import ADMIN, ControlPlane, eventually, is_served

pytestmark = pytest.mark.live

__all__ = ["fleet"]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
OVERLAYS = "/apis/karpenter.sh/v1alpha1/nodeoverlays"
REQUIREMENT = {
    "type": "object",
    "required": ["key", "operator"],
    "properties": {
        "key": {"type": "string"},
        "operator": {"type": "string"},
        "values": {"type": "array", "items": {"type": "string"}},
    },
}
SPEC = {
    "type": "object",
    "required": ["requirements"],
    "properties": {
        "requirements": {"type": "array", "items": REQUIREMENT},
        "price": {"type": "string"},
        "priceAdjustment": {
            "type": "string",
            "pattern": r"^([+-]\d*\.?\d+|\+\d*\.?\d+%|-\d{1,2}(\.\d+)?%|-100%)$",
        },
        "weight": {"type": "integer", "minimum": 1, "maximum": 10000},
    },
}
"""The kind as declared by Karpenter 1.14, limited to the fields that are written here."""


SPEC_OF_OTHERS: dict[str, Any] = {
    "requirements": [{"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}],
    "priceAdjustment": "-5%",
    "weight": 7,
}


@pytest.fixture
def kind(plane: ControlPlane) -> Iterator[None]:
    schema = {"type": "object", "properties": {"spec": SPEC}}
    version = {"name": "v1alpha1", "served": True, "storage": True}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "nodeoverlays.karpenter.sh"},
        "spec": {
            "group": "karpenter.sh",
            "scope": "Cluster",
            "names": {"kind": "NodeOverlay", "plural": "nodeoverlays", "singular": "nodeoverlay"},
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }
    plane.create(CRDS, crd)
    eventually("the kind NodeOverlay is served", lambda: is_served(plane, OVERLAYS))
    yield
    plane.delete(f"{CRDS}/nodeoverlays.karpenter.sh")


@pytest.mark.usefixtures("kind")
def test_overlays_are_applied_and_updated(
    plane: ControlPlane,
    fleet: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig(ADMIN)))
    words = ["overlays", str(fleet), "--apply"]
    assert main(words) == 0, capsys.readouterr().err
    assert set(plane.list(OVERLAYS)) == {PLAN, RESERVED, PREFERRED}
    assert main(words) == 0
    assert "0 of 3 overlays changed." in capsys.readouterr().out

    plane.patch(f"{OVERLAYS}/{PLAN}", {"spec": {"weight": 99}})
    write_pool(fleet, PREFERENCE.replace("20", "30"))
    assert main([*words, "--disabled"]) == 0, capsys.readouterr().err
    there: dict[str, Any] = plane.list(OVERLAYS)
    assert there[PREFERRED]["spec"]["priceAdjustment"] == "-30%"
    assert there[PLAN]["spec"]["weight"] == 20
    assert all(o["metadata"]["labels"]["reconciler/disabled"] == "true" for o in there.values())

    assert main(words) == 0, capsys.readouterr().err
    there = plane.list(OVERLAYS)
    assert not any("reconciler/disabled" in o["metadata"]["labels"] for o in there.values())
    managers = {m["manager"] for m in there[PREFERRED]["metadata"]["managedFields"]}
    assert managers == {"reconciler"}

    foreign = {"metadata": {"name": PREFERRED, "labels": {"app": "mine"}}, "spec": SPEC_OF_OTHERS}
    plane.delete(f"{OVERLAYS}/{PREFERRED}")
    plane.create(
        OVERLAYS, {"apiVersion": "karpenter.sh/v1alpha1", "kind": "NodeOverlay", **foreign}
    )
    assert main(words) == 0
    assert "managed by nobody" in capsys.readouterr().out
    assert plane.get(f"{OVERLAYS}/{PREFERRED}")["spec"] == SPEC_OF_OTHERS
