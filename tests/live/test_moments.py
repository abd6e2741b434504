"""A real cluster in the moments between two states: pods in flight, pods that end, new settings."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.source.plainyaml import dump
from tests.cli.test_end_to_end import NODE_CLASS, NODE_POOL
from tests.live.conftest import BUDGETS, DEPLOYMENTS, NODES, PODS, Live
from tests.live.plane import Object
from tests.yamltext import dump_all, load

pytestmark = pytest.mark.live

ZONE = "topology.kubernetes.io/zone"


def with_pod_spec(live: Live, **spec: Any) -> None:
    """Give the pods of the Deployment more rules; it has no pods afterwards."""
    live.scale(0)
    live.await_("no pods", lambda: not live.plane.list(PODS))
    template = {"spec": spec}
    live.plane.patch(f"{DEPLOYMENTS}/web", {"spec": {"template": template}})


def instance_zones(live: Live) -> list[str]:
    rows = live.cloud.connect("ec2", 1).describe_instances(
        Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    )["Reservations"]
    return sorted(i["Placement"]["AvailabilityZone"] for row in rows for i in row["Instances"])


def stay_instances(live: Live, number: int, for_s: float) -> None:
    """Fail if the number of instances changes within that time."""
    until = datetime.now(UTC) + timedelta(seconds=for_s)
    while datetime.now(UTC) < until:
        assert len(live.cloud.running_instances()) == number, live.recent_events()
        Event().wait(0.5)


SELF = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": ZONE}


@pytest.mark.parametrize(
    "rules",
    [
        {
            "topologySpreadConstraints": [
                {**SELF, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
            ]
        },
        {
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [SELF]}
            }
        },
    ],
    ids=["spread", "anti-affinity"],
)
def test_a_deployment_that_grows_during_a_launch_gets_the_other_zone(
    live: Live, rules: Object
) -> None:
    with_pod_spec(live, **rules)
    live.kubelets.joins = False
    with live.running():
        live.scale(1)
        live.await_("one instance", lambda: len(live.cloud.running_instances()) == 1)
        live.scale(2)
        live.await_("two instances", lambda: len(live.cloud.running_instances()) == 2)
        assert len(set(instance_zones(live))) == 2
        live.kubelets.joins = True
        live.await_("two nodes", lambda: live.settled(2))
        stay_instances(live, 2, 5)


def test_required_zone_affinity_follows_a_pod_in_flight(live: Live) -> None:
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [SELF]}}
    with_pod_spec(live, affinity=near)
    live.kubelets.joins = False
    with live.running():
        live.scale(1)
        live.await_("one instance", lambda: len(live.cloud.running_instances()) == 1)
        live.scale(2)
        live.await_("two instances", lambda: len(live.cloud.running_instances()) == 2)
        assert len(set(instance_zones(live))) == 1
        live.kubelets.joins = True
        live.await_("two nodes", lambda: live.settled(2))


def test_consolidate_after_counts_from_the_moment_pods_begin_to_end(live: Live) -> None:
    pool = deepcopy(NODE_POOL)
    pool["spec"]["disruption"]["consolidateAfter"] = "15s"  # type: ignore[index]
    (live.folder / "fleet.yaml").write_text(dump_all([NODE_CLASS, pool]))
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        Event().wait(20)
        live.kubelets.ends_pods = False
        began = datetime.now(UTC)
        live.scale(0)
        Event().wait(5)
        live.kubelets.ends_pods = True
        live.await_("no instance", lambda: not live.cloud.running_instances())
    removed = [
        e.at
        for e in live.recorder.events
        if e.kind == "CommandStarted" and e.message.startswith("Emptiness")
    ]
    assert removed
    assert min(removed) - began >= timedelta(seconds=15), live.recent_events()


def test_a_running_daemon_reads_the_queue_that_a_commit_names(live: Live) -> None:
    sqs = live.cloud.connect("sqs", 1)
    url = sqs.create_queue(QueueName="shop-interruptions")["QueueUrl"]
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        config = load((live.folder / "reconciler.yaml").read_text())
        config["interruptionQueue"] = "shop-interruptions"
        (live.folder / "reconciler.yaml").write_text(dump(config))
        live.await_(
            "the daemon begins again",
            lambda: any("interruptionQueue" in m for m in live.recorder.messages("Revision")),
        )
        victim = min(live.cloud.running_instances())
        event = {
            "version": "0",
            "source": "aws.ec2",
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "time": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "detail": {"instance-id": victim, "instance-action": "terminate"},
        }
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps(event))
        live.await_("it is replaced", lambda: victim not in live.cloud.running_instances())
        live.await_("two nodes", lambda: live.settled(2))


def test_nothing_is_launched_while_karpenter_runs_in_the_cluster(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {"app.kubernetes.io/name": "karpenter"}
    container = {"name": "controller", "image": "x"}
    live.plane.create(
        PODS,
        {
            "metadata": {"name": "karpenter-0", "labels": labels},
            "spec": {"containers": [container], "nodeSelector": {"only": "theirs"}},
        },
    )
    catalog = ["--catalog", str(live.folder.parent / "types.json")]
    with live.running():
        live.await_(
            "it is reported",
            lambda: any("Karpenter runs" in m for m in live.recorder.messages("Unknown")),
        )
        stay_instances(live, 0, 5)
        assert main(live.words("plan", *catalog)) == 0
        assert "Karpenter runs in this cluster" in "".join(capsys.readouterr())
        assert main(live.words("status")) == 0
        assert "Karpenter runs in this cluster" in "".join(capsys.readouterr())
        live.plane.delete(f"{PODS}/karpenter-0", gracePeriodSeconds=0)
        live.await_("two nodes", lambda: live.settled(2))


def evictions(live: Live) -> int:
    """Return how many evictions the API server has answered."""
    text = live.plane.api.call("GET", "/metrics").decode()
    found = re.findall(
        r'^apiserver_request_total\{[^}]*subresource="eviction"[^}]*\} (\d+)', text, re.MULTILINE
    )
    return sum(map(int, found))


def test_a_blocked_eviction_is_tried_a_few_times_a_minute_until_its_budget_allows_it(
    live: Live,
) -> None:
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        live.plane.patch(f"{BUDGETS}/web", {"spec": {"minAvailable": 2}})
        live.await_(
            "a budget of zero",
            lambda: live.plane.get(f"{BUDGETS}/web")["status"]["disruptionsAllowed"] == 0,
        )
        node = min(live.plane.list(NODES))
        live.plane.delete(f"{NODES}/{node}")
        live.await_("the drain has begun", lambda: live.recorder.messages("Draining"))
        Event().wait(60)
        before = evictions(live)
        Event().wait(60)
        assert 1 <= evictions(live) - before <= 8
        assert node in live.plane.list(NODES)
        live.plane.patch(f"{BUDGETS}/web", {"spec": {"minAvailable": 1}})
        live.await_("it is gone", lambda: node not in live.plane.list(NODES))


def test_nodes_of_a_removed_pool_are_named_while_they_wait(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    other = deepcopy(NODE_POOL)
    other["metadata"] = {"name": "other"}
    (live.folder / "fleet.yaml").write_text(dump_all([NODE_CLASS, NODE_POOL]))
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
        (live.folder / "fleet.yaml").write_text(dump_all([NODE_CLASS, other]))
        text = "NodePool web was removed from git: 2 nodes stay until `--allow-removal web`"
        live.await_(
            "it is in the log",
            lambda: any(text in m for m in live.recorder.messages("AwaitingApproval")),
        )
        assert main(live.words("status")) == 0
        assert "NodePool web was removed from git: 2 nodes" in capsys.readouterr().out
        stay_instances(live, 2, 5)
