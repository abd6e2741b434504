"""``plan`` of a fleet that runs on a Kubernetes API: live, and from a snapshot of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from reconciler._resources import resource_path
from reconciler.adapters.aws.clients import connector
from reconciler.assembly.assembly import assemble_world
from reconciler.assembly.inputs.planfile import load
from reconciler.assembly.inputs.request import Environment
from reconciler.assembly.mandate import Approval, mandate_of
from reconciler.cli.main import main
from reconciler.engine.reconcile import Pass, reconcile
from reconciler.model.errors import StalePlanError
from reconciler.model.settings import Settings
from reconciler.observed.snapshot import RECORDS_KIND, read_snapshot
from tests.adapters.kubernetes.apiserver import Object
from tests.cli.commandlines import request_of
from tests.cli.test_kubernetes_end_to_end import Site, site
from tests.repositories import commit_all, init

__all__ = ["site"]


def launched(site: Site) -> None:
    """Run the daemon until the two pods run."""
    sandbox = site.sandbox
    site.keep(lambda: sandbox.settled() and len(site.recorder.messages("Initialized")) == 2)


def planned(site: Site, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*site.words("plan"), *words, "-o", "json"]) == 0, capsys.readouterr().err
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)
    return plan


def drift(site: Site) -> None:
    """Make every node differ from its desired state in git."""
    site.sandbox.cloud.publish("ami-second", "shop-2", site.clock.now())
    site.clock.advance(600)


def the_pass(site: Site, path: Path | None = None) -> Pass:
    """Run one pass as ``apply`` does, of a saved plan or of git."""
    request = request_of(site.words("apply")).fleet
    connect = cache(connector(Settings(endpoint_url=site.url)))
    environment = Environment(site.clock, connect, workers=1)
    with assemble_world(request, site.recorder, environment) as assembly:
        approved = load(str(path)) if path is not None else None
        mandate = mandate_of(assembly.settings, Approval(approved, continues=False))
        return reconcile(assembly.world, assembly.source.read(), mandate)


def save(site: Site) -> Path:
    path = site.folder.parent / "plan.json"
    assert main([*site.words("plan"), "--out", str(path)]) == 0
    return path


def captured(site: Site, *more: str) -> str:
    path = site.folder.parent / "cluster.json"
    assert main([*site.words("snapshot"), "--out", str(path), *more]) == 0
    return str(path)


def fits_its_schema(text: str) -> bool:
    """Return whether a snapshot is valid under its schema."""
    schemas = [
        json.loads(Path(resource_path("schemas", f"{name}.v1.json")).read_bytes())
        for name in ("snapshot", "fleetrecords")
    ]
    registry = Registry().with_resources((s["$id"], Resource.from_contents(s)) for s in schemas)
    return Draft202012Validator(schemas[0], registry=registry).is_valid(json.loads(text))


def is_alike_without_names(
    site: Site, live: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> bool:
    """Return whether a plan of an anonymized snapshot has the decisions of the live one."""
    file = captured(site, "--anonymize")
    text = Path(file).read_text()
    assert fits_its_schema(text)
    assert not fits_its_schema(text.replace('"kind":"FleetRecords"', '"kind":"FleetRecord"'))
    names = {*site.sandbox.kube.of("nodes"), *site.sandbox.kube.of("pods")}
    assert names
    assert not [name for name in names if f'"{name}"' in text or f"/{name}" in text]
    plan = planned(site, capsys, "--snapshot", file)
    assert plan["cost"] == live["cost"]
    assert len(plan["drift"]) == len(live["drift"])
    assert len(plan["deferred"]) == len(live["deferred"])
    assert [c["instanceTypes"] for c in plan["nodeClaims"]] == [
        c["instanceTypes"] for c in live["nodeClaims"]
    ]
    assert [(c["reason"], len(c["nodes"])) for c in plan["commands"]] == [
        (c["reason"], len(c["nodes"])) for c in live["commands"]
    ]
    return True


def heartbeat(node: Object) -> None:
    node["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    for condition in node["status"]["conditions"]:
        condition["lastHeartbeatTime"] = "2026-03-02T10:00:00Z"
        condition["message"] = "kubelet is posting ready status"


def is_same(live: dict[str, Any], snapshot: dict[str, Any]) -> bool:
    """Return whether two plans are equal except for the source and time of the observation."""
    assert (live.pop("observation"), snapshot.pop("observation")) == ("cluster", "snapshot")
    assert "observedAt" not in live
    assert snapshot.pop("observedAt"), "the age of the snapshot can be shown"
    live.pop("at"), snapshot.pop("at")  # the clock of a live plan runs
    assert live.pop("digest") != snapshot.pop("digest"), "it covers where the cluster was seen"
    differing = {key for key in live.keys() | snapshot.keys() if live.get(key) != snapshot.get(key)}
    assert not differing, {key: (live.get(key), snapshot.get(key)) for key in differing}
    return True


def node_of(site: Site) -> str:
    """Return the name of a node that is to be replaced."""
    return min(site.sandbox.kube.of("nodes"))


def test_a_plan_of_a_running_fleet(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """It is one long test because starting the fleet takes seconds."""
    launched(site)
    drift(site)
    before = len(site.sandbox.kube.calls)
    live = planned(site, capsys)
    assert len(live["drift"]) == 2
    assert {c["reason"] for c in live["commands"]} == {"Drifted"}
    path = save(site)
    assert is_alike_without_names(site, live, capsys)
    file = captured(site)
    assert {call.method for call in site.sandbox.kube.calls[before:]} == {"GET"}

    assert is_same(live, planned(site, capsys, "--snapshot", file))

    _, *rest = site.words("explain")
    assert main(["explain", "node", node_of(site), *rest, "--snapshot", file]) == 0
    assert "to be disrupted for drift" in capsys.readouterr().out

    site.sandbox.kube.change(
        "pods", "web-1", lambda pod: pod["metadata"].update(labels={"app": "x"})
    )
    with pytest.raises(StalePlanError, match="Pod default/web-1 has changed"):
        the_pass(site, path)
    assert len(site.sandbox.cloud.running_instances()) == 2, "nothing was launched"
    site.sandbox.kube.change(
        "pods", "web-1", lambda pod: pod["metadata"].update(labels={"app": "web"})
    )

    site.clock.advance(60)
    for name in site.sandbox.kube.of("nodes"):
        site.sandbox.kube.change("nodes", name, heartbeat)
    assert the_pass(site, path).plan.approved_as == load(str(path)).digest
    assert len(site.sandbox.cloud.running_instances()) > 2, "the replacement was launched"

    live = planned(site, capsys)
    assert live["commands"] == [], "the command is under way"
    file = captured(site)
    assert fits_its_schema(Path(file).read_text())
    records = next(
        item for item in json.loads(Path(file).read_text())["items"] if item["kind"] == RECORDS_KIND
    )
    assert records["commands"][0]["phase"] == "marked"
    schema = json.loads(Path(resource_path("schemas", "fleetrecords.v1.json")).read_bytes())
    Draft202012Validator(schema).validate(records)
    assert is_same(live, planned(site, capsys, "--snapshot", file))

    launched_already = len(site.sandbox.cloud.running_instances()) - 2
    assert main([*site.words("simulate"), "--snapshot", file, "-o", "json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["converged"]
    created = [e for e in output["events"] if e["kind"] == "NodeClaimCreated"]
    assert len(created) == 2 - launched_already, "what is under way is not launched again"
    assert len(output["fleet"]) == 2


def test_a_launch_in_progress_is_not_planned_again(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.sandbox._deployment()
    first = planned(site, capsys)
    assert len(first["nodeClaims"]) == 2
    assert is_same(first, planned(site, capsys, "--snapshot", captured(site)))
    site.sandbox.kube.fault = lambda call: (
        None
    )  # no kubelet: the instances start, and no node joins
    the_pass(site)
    assert len(site.sandbox.cloud.running_instances()) == 2
    live = planned(site, capsys)
    assert live["actions"] == []
    assert is_same(live, planned(site, capsys, "--snapshot", captured(site)))


def test_a_base_is_planned_for_the_same_cluster(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    init(site.folder)
    commit_all(site.folder)
    site.sandbox._deployment()
    plan = planned(site, capsys, "--base", "HEAD")
    assert plan["atRest"]["before"] == plan["atRest"]["after"]
    assert plan["atRest"]["before"]["nodes"] == 2, "the pods of the cluster count on both sides"
    assert plan["atRest"]["perHour"] == 0


def test_without_a_cluster_a_plan_states_that_it_uses_the_workloads(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(site, capsys, "--set", "cluster=none")
    assert plan["observation"] == "workloads"
    assert site.sandbox.kube.calls == []


def test_a_cluster_without_a_fleet_is_captured_through_the_api(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kube = site.sandbox.kube
    kube.rules = None  # a person's credentials
    site.sandbox._deployment()
    empty = site.folder.parent / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    monkeypatch.setenv("KUBECONFIG", str(site.folder.parent / "kubeconfig"))
    assert main(["snapshot", "--out", "cluster.json"]) == 0, capsys.readouterr().err
    found = read_snapshot(Path("cluster.json").read_bytes(), "cluster.json")
    assert [pod.metadata.name for pod in found.pods] == ["web-1", "web-2"]
    assert found.records is None
    assert Path("cluster.json").stat().st_mode & 0o077 == 0
    assert {"nodepools", "nodeclaims"} <= {call.resource for call in kube.calls}
    assert {call.method for call in kube.calls} == {"GET"}


def test_the_records_of_another_fleet_are_refused(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.sandbox._deployment()
    file = captured(site)
    capsys.readouterr()
    assert main([*site.words("plan"), "--snapshot", file, "--set", "fleet=other"]) == 1
    assert 'records of fleet "shop", but this is fleet "other"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda records: records.update(apiVersion="reconciler/v9"), "unsupported FleetRecords"),
        (lambda records: records.update(serial="x"), "invalid FleetRecords"),
    ],
    ids=["of another release", "of another shape"],
)
def test_unreadable_records_stop_the_plan(
    site: Site,
    capsys: pytest.CaptureFixture[str],
    broken: Callable[[Object], None],
    says: str,
) -> None:
    path = Path(captured(site))
    content = json.loads(path.read_text())
    broken(next(item for item in content["items"] if item["kind"] == RECORDS_KIND))
    path.write_text(json.dumps(content))
    capsys.readouterr()
    assert main([*site.words("plan"), "--snapshot", str(path)]) == 1
    output = capsys.readouterr().err
    assert says in output
    assert "capture the snapshot again" in output


def test_a_simulation_starts_with_the_running_fleet(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(site)

    def simulate(*words: str) -> dict[str, Any]:
        capsys.readouterr()
        assert main([*site.words("simulate"), *words, "-o", "json"]) == 0, capsys.readouterr().err
        report: dict[str, Any] = json.loads(capsys.readouterr().out)
        return report

    def launches(report: dict[str, Any]) -> int:
        return sum(event["kind"] == "Launched" for event in report["events"])

    now = simulate()
    assert launches(now) == 0
    assert now["cost"]["before"] == now["cost"]["after"] > 0
    drift(site)
    after = simulate("--until", "2h")
    assert launches(after) == 2
    assert after["cost"]["before"] == now["cost"]["before"]
    live = planned(site, capsys)
    assert is_alike_without_names(site, live, capsys)
