"""Events of the daemon on pods, nodes and NodePools, as `kubectl describe` shows them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.cli import test_kubernetes_end_to_end as live
from tests.cli.test_kubernetes_end_to_end import Site, started

site = live.site


def events(site: Site, reason: str) -> list[tuple[str, str, str]]:
    """Return type, object and note of the Events of a reason."""
    found = site.sandbox.kube.of("events").values()
    return [
        (e["type"], f"{e['regarding']['kind']}/{e['regarding']['name']}", e["note"])
        for e in found
        if e["reason"] == reason
    ]


def test_a_pending_pod_has_an_event_that_names_its_node(site: Site) -> None:
    started(site)
    reported = events(site, "Nominated")
    assert {about for _, about, _ in reported} >= {"Pod/web-1", "Pod/web-2"}
    assert all(note.startswith("Pod should schedule on: ") for _, _, note in reported)
    assert any("nodeclaim/web-" in note for _, _, note in reported)
    pod = site.sandbox.kube.of("pods")["web-1"]["metadata"]
    (uid,) = {
        e["regarding"]["uid"]
        for e in site.sandbox.kube.of("events").values()
        if e["regarding"]["name"] == "web-1"
    }
    assert uid == pod["uid"]


def test_an_unschedulable_pod_has_an_event_with_the_reason(site: Site) -> None:
    sandbox = started(site)
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    container = {"name": "main", "resources": {"requests": {"cpu": "900"}}}
    sandbox.kube.add(
        {
            "kind": "Pod",
            "metadata": {"name": "giant", "labels": {"app": "giant"}},
            "spec": {"containers": [container]},
            "status": {"phase": "Pending", "conditions": [waits]},
        }
    )
    site.keep(lambda: bool(events(site, "FailedScheduling")))
    ((kind, about, note),) = events(site, "FailedScheduling")
    assert (kind, about) == ("Warning", "Pod/giant")
    assert note.startswith("Failed to schedule pod: ")
    assert "cpu" in note


@pytest.mark.slow
def test_a_disrupted_node_has_events_about_its_disruption(site: Site) -> None:
    sandbox = started(site)
    sandbox.cloud.publish("ami-second", "shop-2", site.clock.now())
    site.clock.advance(timedelta(minutes=10).total_seconds())
    site.keep(lambda: bool(events(site, "DisruptionTerminating")))
    ((_, about, note), *_) = events(site, "DisruptionLaunching")
    assert about.startswith("Node/")
    assert note.startswith("Disrupting Node: Drifted/replace")
    assert events(site, "DisruptionWaitingReadiness")
