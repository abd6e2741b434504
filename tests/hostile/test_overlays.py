"""Names in NodeOverlays that would lead out of a folder, or to another object of the cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.adapters.kubernetes.apiserver import Kube
from tests.cli.test_overlays import COMMITTED, PREFERENCE, fleet, kube
from tests.hostile.threats import Threat, attack

__all__ = ["fleet", "kube"]


@attack(Threat.OWNERSHIP, "an instance type that is a path, in the commitments of a fleet")
@pytest.mark.parametrize("name", ["../../../nodes/n1", "a/../b", "..", "m7i.large?force=true"])
def test_an_instance_type_that_is_a_path_is_rejected(
    fleet: Path,
    kube: Kube,
    tmp_path: Path,
    name: str,
) -> None:
    text = COMMITTED.replace("instanceType: m7i.large", f"instanceType: {json.dumps(name)}")
    (fleet / "reconciler.yaml").write_text(text)
    assert main(["overlays", str(fleet), "--out", str(tmp_path / "out")]) == 1
    assert not (tmp_path / "out").exists()
    assert main(["overlays", str(fleet), "--apply"]) == 1
    assert not [c for c in kube.calls if c.method != "GET"]


@attack(Threat.OWNERSHIP, "a NodePool of a snapshot whose name is a path")
def test_a_pool_name_that_is_a_path_is_rejected(
    fleet: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (fleet / "pool.yaml").unlink()
    metadata = {"name": "../../x", "annotations": {"veneer.io/preference.1": PREFERENCE}}
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": metadata}
    (tmp_path / "s.json").write_text(json.dumps({"kind": "List", "items": [pool]}))
    words = ["--snapshot", str(tmp_path / "s.json"), "--out", str(tmp_path / "out")]
    assert main(["overlays", str(fleet), *words]) == 1
    assert "invalid name" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@attack(Threat.OWNERSHIP, "a link in the folder of generated overlays that leads elsewhere")
def test_a_symbolic_link_is_replaced_and_not_followed(fleet: Path, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.write_text("mine\n")
    out.mkdir()
    (out / "pref-general-1.yaml").symlink_to(elsewhere)
    assert main(["overlays", str(fleet), "--out", str(out)]) == 1
    assert elsewhere.read_text() == "mine\n"
