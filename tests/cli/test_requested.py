"""`cordon`, `uncordon`, `drain`, `delete`: requested by people, executed by the acting process."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from reconciler.adapters.database.leases.lease import FileLease
from reconciler.cli.main import main
from tests.cli import test_kubernetes_end_to_end as live
from tests.cli.test_kubernetes_end_to_end import Site, started

site = live.site


def request(site: Site, *words: str) -> int:
    """Make a request with or without a daemon; there are no uncommitted changes to confirm."""
    flags = site.words("x")[2:]
    return main([*words, str(site.folder), *flags])


def open_requests(site: Site, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    capsys.readouterr()
    assert main(["status", str(site.folder), *site.words("x")[2:8], "-o", "json"]) == 0
    found: list[Any] = json.loads(capsys.readouterr().out)["requests"]
    return found


def history(site: Site, target: str, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str]]:
    capsys.readouterr()
    words = ["history", str(site.folder), *site.words("x")[2:8], "--target", target, "-o", "json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["items"]
    return [(row["spec"]["verb"], str(row["status"]["outcome"])) for row in reversed(rows)]


@pytest.fixture
def lease_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make requests as if a daemon held the lease."""
    monkeypatch.setattr(FileLease, "holder", lambda _: "run (host, pid 7)")


def test_a_cordon_without_a_daemon_takes_effect_at_once(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox = started(site)
    node = min(sandbox.kube.of("nodes"))
    assert request(site, "cordon", node) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert f"Cordon node {node}" in out
    assert "succeeded" in out
    assert sandbox.kube.of("nodes")[node]["spec"]["unschedulable"] is True
    assert request(site, "uncordon", node) == 0
    assert sandbox.kube.of("nodes")[node]["spec"]["unschedulable"] is False
    assert history(site, node, capsys)[-2:] == [("cordon", "succeeded"), ("uncordon", "succeeded")]


def test_a_request_with_a_running_daemon_waits_for_its_next_pass(
    site: Site, capsys: pytest.CaptureFixture[str], lease_held: None
) -> None:
    sandbox = started(site)
    node = min(sandbox.kube.of("nodes"))
    calls = len(sandbox.kube.calls)
    assert request(site, "cordon", node, "--reason", "bad disk") == 0
    assert "run (host, pid 7) executes it" in capsys.readouterr().out
    assert request(site, "cordon", node) == 0, "asked twice is asked once"
    assert len(sandbox.kube.calls) == calls, "the command itself calls nothing"
    (row,) = open_requests(site, capsys)
    assert (row["verb"], row["target"], row["reason"]) == ("cordon", node, "bad disk")
    assert main(["history", str(site.folder), *site.words("x")[2:8], "--target", node]) == 0
    assert "requested" in capsys.readouterr().out
    site.keep(lambda: sandbox.kube.of("nodes")[node]["spec"].get("unschedulable") is True)
    site.keep(lambda: f"{node}: cordoned, as requested" in site.recorder.messages("RequestDone"))
    assert open_requests(site, capsys) == []


def test_a_drain_evicts_under_budgets_and_keeps_the_node(
    site: Site, capsys: pytest.CaptureFixture[str], lease_held: None
) -> None:
    sandbox = started(site)
    node = min(sandbox.kube.of("nodes"))
    sandbox.fewest = sandbox.replicas
    assert request(site, "drain", node) == 0
    site.keep(
        lambda: any(
            "is empty and stays cordoned" in m for m in site.recorder.messages("RequestDone")
        )
    )
    assert sandbox.fewest >= 1, "the budget held"
    assert any(c.part == "eviction" for c in sandbox.kube.calls)
    there = sandbox.kube.of("nodes")[node]
    assert there["spec"]["unschedulable"] is True
    assert "deletionTimestamp" not in there["metadata"]
    assert history(site, node, capsys)[-1] == ("drain-node", "succeeded")


def test_an_uncordon_ends_a_blocked_drain(
    site: Site, capsys: pytest.CaptureFixture[str], lease_held: None
) -> None:
    sandbox = started(site)
    node = min(sandbox.kube.of("nodes"))
    sandbox.kube.change("poddisruptionbudgets", "web", lambda b: b["spec"].update(minAvailable=2))
    sandbox._budgets = lambda: sandbox.kube.change(  # type: ignore[method-assign]
        "poddisruptionbudgets", "web", lambda b: b.update(status={"disruptionsAllowed": 0})
    )
    assert request(site, "drain", node) == 0
    refused = len(sandbox.kube.calls) + 120
    site.keep(lambda: len(sandbox.kube.calls) > refused)
    assert len(open_requests(site, capsys)) == 1
    assert [p for p in sandbox.alive().values() if p["spec"].get("nodeName") == node], "it is held"
    assert request(site, "uncordon", node) == 0
    site.keep(lambda: sandbox.kube.of("nodes")[node]["spec"].get("unschedulable") is False)
    assert open_requests(site, capsys) == []
    assert ("drain-node", "failed") in history(site, node, capsys)


@pytest.mark.parametrize("how", ["nodeclaim", "node"])
def test_a_deletion_drains_the_node_and_terminates_the_instance(
    site: Site, capsys: pytest.CaptureFixture[str], lease_held: None, how: str
) -> None:
    sandbox = started(site)
    node = min(sandbox.kube.of("nodes"))
    instance = sandbox.kube.of("nodes")[node]["spec"]["providerID"].rpartition("/")[2]
    name = node
    if how == "nodeclaim":
        capsys.readouterr()
        main(["get", "nodeclaims", str(site.folder), *site.words("x")[2:8], "-o", "json"])
        rows = json.loads(capsys.readouterr().out)["items"]
        (name,) = (r["metadata"]["name"] for r in rows if r["status"]["nodeName"] == node)
    sandbox.fewest = sandbox.replicas
    assert request(site, "delete", how, name) == 0, capsys.readouterr().err
    site.keep(lambda: node not in sandbox.kube.of("nodes") and sandbox.settled())
    assert instance not in sandbox.cloud.running_instances()
    assert sandbox.fewest >= 1, "the budget held"
    assert len(sandbox.cloud.running_instances()) == 2, "its pod got another node"


def test_a_dry_run_records_nothing(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    sandbox = started(site)
    node = min(sandbox.kube.of("nodes"))
    for words in (("drain", node), ("cordon", node), ("delete", "node", node)):
        assert request(site, *words, "--dry-run") == 0
        assert "Nothing was changed (--dry-run)" in capsys.readouterr().out
    assert open_requests(site, capsys) == []


def test_a_node_that_is_not_ours_is_refused(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    started(site)
    for words in (("drain", "stranger"), ("cordon", "stranger"), ("delete", "node", "stranger")):
        assert request(site, *words) == 1
        message = capsys.readouterr().err
        assert 'no node of fleet shop is named "stranger"' in message
        assert "use kubectl for nodes of others" in message
    assert open_requests(site, capsys) == []


def test_an_instance_without_our_tags_is_not_deleted(
    site: Site, capsys: pytest.CaptureFixture[str], lease_held: None
) -> None:
    sandbox = started(site)
    node = min(sandbox.kube.of("nodes"))
    instance = sandbox.kube.of("nodes")[node]["spec"]["providerID"].rpartition("/")[2]
    client = sandbox.cloud.connect("ec2", 1)
    client.create_tags(Resources=[instance], Tags=[{"Key": "reconciler/fleet", "Value": "other"}])
    site.clock.advance(timedelta(minutes=10).total_seconds())
    assert request(site, "delete", "node", node) == 0
    site.keep(lambda: bool(site.recorder.messages("Failed")))
    assert instance in sandbox.cloud.running_instances()
    assert any(
        "is not tagged as one of this fleet" in message
        for message in site.recorder.messages("Failed")
    )
    assert open_requests(site, capsys) == [], "it is refused, not kept"
