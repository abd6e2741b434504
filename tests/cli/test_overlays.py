"""``reconciler overlays``: NodeOverlays as text, as files, and as objects of a cluster."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.kubernetes.kinds import overlays_role
from reconciler.cli.main import main
from reconciler.source.plainyaml import load_all
from tests.adapters.kubernetes.apiserver import (
    Call,
    Kube,
    RefusedError,
    serving,
    write_kubeconfig,
)
from tests.cli.test_plan import CLASS, NOW, POOL

PREFERENCE = "karpenter.k8s.aws/instance-family=c7g,m7g adjust=-20%"
COMMITTED = """\
apiVersion: reconciler/v1
kind: Configuration
fleet: web
commitments:
  reservedInstances: [{instanceType: m7i.large, count: 2, usedElsewhere: 0}]
  savingsPlans: [{type: EC2Instance, family: c7i, commitment: 1.5, usedElsewhere: 0}]
"""
OF_VENEER = {"app.kubernetes.io/managed-by": "veneer"}
REGION = "us-east-1"
RESERVED, PLAN, PREFERRED = (
    f"cost-aware-ri-m7i.large-{REGION}",
    f"cost-aware-ec2-sp-c7i-{REGION}",
    "pref-general-1",
)

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    folder.mkdir()
    write_pool(folder, PREFERENCE)
    (folder / "class.yaml").write_text(CLASS)
    (folder / "reconciler.yaml").write_text(COMMITTED)
    return folder


def write_pool(folder: Path, preference: str) -> None:
    annotations = f'{{veneer.io/preference.1: "{preference}"}}'
    named = POOL.replace("{name: general}", f"{{name: general, annotations: {annotations}}}")
    (folder / "pool.yaml").write_text(named)


def a_node(name: str, instance_type: str) -> dict[str, Any]:
    labels = {
        "node.kubernetes.io/instance-type": instance_type,
        "karpenter.sh/capacity-type": "on-demand",
        "topology.kubernetes.io/zone": f"{REGION}a",
        "karpenter.sh/nodepool": "general",
    }
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"providerID": f"aws:///{REGION}a/i-{name}"},
        "status": status,
    }


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kube]:
    rules = overlays_role("x")["rules"]
    assert isinstance(rules, list)
    kube = Kube(absent=frozenset(), rules=rules)
    kube.add({"kind": "NodePool", "metadata": {"name": "general", "uid": "pool-uid"}})
    with serving(kube) as url:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", url)))
        yield kube


def overlays(fleet: Path, *more: str) -> int:
    return main(["overlays", str(fleet), "--now", NOW, *more])


def rows(fleet: Path, capsys: Capture, *more: str) -> dict[str, tuple[str, str]]:
    capsys.readouterr()
    assert overlays(fleet, "-o", "json", *more) == 0
    found = json.loads(capsys.readouterr().out)["overlays"]
    return {r["object"]["metadata"]["name"]: (r["action"], r["reason"]) for r in found}


def writes(kube: Kube) -> list[str]:
    return [f"{c.method} {c.name}" for c in kube.calls if c.method != "GET"]


def test_overlays_are_printed_as_objects(fleet: Path, capsys: Capture) -> None:
    assert overlays(fleet) == 0
    plan, reserved, preferred = load_all(capsys.readouterr().out.encode())
    assert [o["metadata"]["name"] for o in (plan, reserved, preferred)] == [
        PLAN, RESERVED, PREFERRED,
    ]  # fmt: skip
    assert preferred["spec"] == {
        "requirements": [
            {"key": "karpenter.sh/nodepool", "operator": "In", "values": ["general"]},
            {
                "key": "karpenter.k8s.aws/instance-family",
                "operator": "In",
                "values": ["c7g", "m7g"],
            },
        ],
        "priceAdjustment": "-20%",
        "weight": 1,
    }
    assert reserved["spec"]["priceAdjustment"] == "-99.99999%"
    assert reserved["spec"]["weight"] > plan["spec"]["weight"] > preferred["spec"]["weight"]
    assert plan["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "reconciler",
        "reconciler/fleet": "web",
        "reconciler/source": "ec2-instance-savings-plan",
    }


def test_running_instances_use_up_commitments_of_overlays(
    fleet: Path, capsys: Capture, tmp_path: Path
) -> None:
    items = [a_node(f"n{number}", "m7i.large") for number in range(2)]
    snapshot = tmp_path / "s.json"
    snapshot.write_text(json.dumps({"kind": "List", "items": items}))
    assert overlays(fleet, "-o", "json", "--snapshot", str(snapshot)) == 0
    found = json.loads(capsys.readouterr().out)["items"]
    assert [o["metadata"]["name"] for o in found] == [PLAN, PREFERRED]


def test_disabled_overlays_select_nothing(fleet: Path, capsys: Capture) -> None:
    assert overlays(fleet, "-o", "json", "--disabled") == 0
    for item in json.loads(capsys.readouterr().out)["items"]:
        first = item["spec"]["requirements"][0]
        assert first == {"key": "reconciler/disabled", "operator": "In", "values": ["true"]}


def test_an_invalid_annotation_is_reported_and_other_overlays_are_written(
    fleet: Path, capsys: Capture
) -> None:
    write_pool(fleet, "family=c7g adjust=-20%")
    assert overlays(fleet, "-o", "json") == 0
    out, err = capsys.readouterr()
    assert [o["metadata"]["name"] for o in json.loads(out)["items"]] == [PLAN, RESERVED]
    assert "NodePool general: a preference is not applied: veneer.io/preference.1" in err


def test_files_match_the_desired_overlays(fleet: Path, capsys: Capture, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert overlays(fleet, "--out", str(out)) == 0
    assert "3 written, 0 removed, 0 unchanged" in capsys.readouterr().out
    (out / "notes.yaml").write_text("mine: yes\n")
    (fleet / "reconciler.yaml").write_text(COMMITTED[: COMMITTED.index("commitments:")])
    write_pool(fleet, PREFERENCE.replace("20", "30"))
    assert overlays(fleet, "--out", str(out)) == 0
    assert "1 written, 2 removed, 0 unchanged" in capsys.readouterr().out
    assert sorted(p.name for p in out.iterdir()) == ["notes.yaml", f"{PREFERRED}.yaml"]
    (kept,) = load_all((out / f"{PREFERRED}.yaml").read_bytes())
    assert kept["spec"]["priceAdjustment"] == "-30%"
    assert overlays(fleet, "--out", str(out)) == 0
    assert "0 written, 0 removed, 1 unchanged" in capsys.readouterr().out


def test_a_file_of_another_owner_is_not_overwritten(
    fleet: Path, capsys: Capture, tmp_path: Path
) -> None:
    (tmp_path / f"{PLAN}.yaml").write_text("mine: yes\n")
    assert overlays(fleet, "--out", str(tmp_path)) == 1
    assert "was not generated by this command" in capsys.readouterr().err
    assert not (tmp_path / f"{PREFERRED}.yaml").exists()


def test_a_dry_run_writes_nothing(fleet: Path, kube: Kube, capsys: Capture) -> None:
    assert {action for action, _ in rows(fleet, capsys, "--dry-run").values()} == {"create"}
    assert writes(kube) == []


def test_overlays_in_the_cluster_are_created_and_updated(
    fleet: Path, kube: Kube, capsys: Capture
) -> None:
    assert overlays(fleet, "--apply") == 0
    assert "3 of 3 overlays changed." in capsys.readouterr().out
    there = kube.of("nodeoverlays")
    assert set(there) == {PLAN, RESERVED, PREFERRED}
    (owner,) = there[PREFERRED]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("NodePool", "pool-uid")

    kube.calls.clear()
    assert {action for action, _ in rows(fleet, capsys, "--apply").values()} == {"unchanged"}
    assert writes(kube) == []

    for name in ("a", "b"):
        kube.add(a_node(name, "m7i.large"))
    write_pool(fleet, PREFERENCE.replace("20", "30"))
    kube.change("nodeoverlays", PLAN, lambda o: o["spec"].update(weight=99))
    kube.change("nodeoverlays", PLAN, lambda o: o["metadata"]["labels"].update(team="shop"))
    assert rows(fleet, capsys, "--apply") == {
        PLAN: ("update", "c7i savings plan, 0% used"),
        RESERVED: ("delete", "no longer needed"),
        PREFERRED: ("update", "NodePool general, veneer.io/preference.1: -30%"),
    }
    there = kube.of("nodeoverlays")
    assert set(there) == {PLAN, PREFERRED}
    assert there[PREFERRED]["spec"]["priceAdjustment"] == "-30%"
    assert there[PLAN]["spec"]["weight"] == 20
    assert there[PLAN]["metadata"]["labels"]["team"] == "shop"


@pytest.mark.parametrize(
    ("labels", "whose"),
    [
        (OF_VENEER, "veneer"),
        ({}, "nobody"),
        (
            {"app.kubernetes.io/managed-by": "reconciler", "reconciler/fleet": "other"},
            "fleet other",
        ),
    ],
)
def test_overlays_of_others_are_left_alone(
    fleet: Path, kube: Kube, capsys: Capture, labels: dict[str, str], whose: str
) -> None:
    for name in (PREFERRED, "unrelated"):
        metadata = {"name": name, "labels": labels}
        kube.add({"kind": "NodeOverlay", "metadata": metadata, "spec": {"weight": 7}})
    found = rows(fleet, capsys, "--apply")
    assert found[PREFERRED] == ("skip", f"managed by {whose}")
    assert "unrelated" not in found
    assert kube.of("nodeoverlays")[PREFERRED]["spec"] == {"weight": 7}
    assert "unrelated" in kube.of("nodeoverlays")


def test_a_concurrent_change_is_not_overwritten(fleet: Path, kube: Kube, capsys: Capture) -> None:
    assert overlays(fleet, "--apply") == 0
    write_pool(fleet, PREFERENCE.replace("20", "30"))
    (fleet / "reconciler.yaml").write_text(COMMITTED[: COMMITTED.index("commitments:")])

    def interfere(call: Call) -> None:
        if call.method in ("PATCH", "DELETE"):
            kube.change("nodeoverlays", call.name, lambda o: o["spec"].update(weight=5))

    kube.fault = interfere
    assert overlays(fleet, "--apply") == 1
    err = capsys.readouterr().err
    assert err.count("somebody else wrote it at the same time") == 3
    assert {o["spec"]["weight"] for o in kube.of("nodeoverlays").values()} == {5}


def test_a_rejected_overlay_does_not_block_the_others(
    fleet: Path, kube: Kube, capsys: Capture
) -> None:
    def refuse(call: Call) -> None:
        if call.method == "PATCH" and call.name == PLAN:
            raise RefusedError(422, "Invalid", "spec.weight: Invalid value")

    kube.fault = refuse
    assert overlays(fleet, "--apply") == 1
    assert f"NodeOverlay {PLAN}" in capsys.readouterr().err
    assert set(kube.of("nodeoverlays")) == {RESERVED, PREFERRED}


def test_a_cluster_without_the_crd_is_reported(fleet: Path, kube: Kube, capsys: Capture) -> None:
    kube.absent = frozenset({"nodeoverlays"})
    assert overlays(fleet, "--apply") == 1
    assert "feature gate NodeOverlay" in capsys.readouterr().err


def test_node_pools_of_the_cluster_are_used_if_git_has_none(
    fleet: Path, kube: Kube, capsys: Capture
) -> None:
    (fleet / "pool.yaml").unlink()
    annotations = {"veneer.io/preference.3": PREFERENCE}
    kube.change("nodepools", "general", lambda o: o["metadata"].update(annotations=annotations))
    assert "pref-general-3" in rows(fleet, capsys, "--apply")


def test_overlays_are_synced_until_stopped_and_a_failure_is_reported_once(
    fleet: Path, kube: Kube, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = iter(range(10))

    def wait(_: SystemClock, seconds: float, is_over: object) -> None:
        del is_over
        if seconds != 300:
            return
        number = next(rounds)
        kube.absent = frozenset({"nodeoverlays"}) if number in (0, 1) else frozenset()
        if number == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(SystemClock, "wait", wait)
    assert overlays(fleet, "--apply", "--interval", "5m") == 0
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[0] for line in lines] == ["info"] * 3 + ["warning", "info"]
    assert "does not know NodeOverlays" in lines[3]
    assert lines[4].startswith("info no longer: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "x", "--apply"), "cannot be used together"),
        (("--interval", "5m"), "needs --apply"),
        (("--apply", "--snapshot", "s.json"), "a snapshot cannot be used with --apply"),
    ],
)
def test_conflicting_arguments_are_rejected(
    fleet: Path, capsys: Capture, words: tuple[str, ...], message: str
) -> None:
    assert overlays(fleet, *words) == 1
    assert message in capsys.readouterr().err
