"""One fleet from its first launch to its removal, through the commands of an operator.

EC2, SSM and SQS are moto behind a port of this machine, called by the real boto3; state is SQLite;
the cluster is imitated from the instances. Only the clock of the daemon is ours, so that minutes
pass at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.aws.clients import connector
from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.assembly.inputs.request import Environment
from reconciler.assembly.inputs.watching import NullNotifier
from reconciler.cli.main import main
from reconciler.daemon import daemon
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import Settings
from reconciler.source.plainyaml import dump
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.cli.commandlines import request_of
from tests.engine.processes import wait_for
from tests.engine.world import catalog_file
from tests.yamltext import dump_all

START = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
QUEUE = "shop-interruptions"
SERVING = ("launch", "taint", "drain", "terminate")
"""Operations that serve an action of a plan."""
DISCOVERY = {"karpenter.sh/discovery": "shop"}

CONFIG = {
    "apiVersion": "reconciler/v1",
    "kind": "Configuration",
    "cluster": "embedded",
    "clusterName": "shop",
    "interruptionQueue": QUEUE,
}
NODE_CLASS = {
    "apiVersion": "karpenter.k8s.aws/v1",
    "kind": "EC2NodeClass",
    "metadata": {"name": "default"},
    "spec": {
        "amiFamily": "AL2023",
        "amiSelectorTerms": [{"name": "shop-*"}],
        "role": "nodes",
        "subnetSelectorTerms": [{"tags": DISCOVERY}],
        "securityGroupSelectorTerms": [{"tags": DISCOVERY}],
    },
}


def requirement(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": [*values]}


NODE_POOL = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "web"},
    "spec": {
        "template": {
            "spec": {
                "nodeClassRef": {
                    "group": "karpenter.k8s.aws",
                    "kind": "EC2NodeClass",
                    "name": "default",
                },
                "expireAfter": "Never",
                "requirements": [
                    requirement("karpenter.sh/capacity-type", "spot"),
                    requirement("kubernetes.io/arch", "amd64"),
                    requirement("node.kubernetes.io/instance-type", "m7i.large", "c7i.large"),
                ],
            }
        },
        "disruption": {
            "consolidationPolicy": "WhenEmpty",
            "consolidateAfter": "0s",
            "budgets": [{"nodes": "100%"}],
        },
    },
}


def a_deployment(replicas: int) -> dict[str, Any]:
    container = {"name": "main", "image": "main", "resources": {"requests": {"cpu": "1500m"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [container]},
            },
        },
    }


@dataclass
class Shop:
    """The folder of the fleet, and its account."""

    folder: Path
    cloud: EmbeddedEC2
    clock: SimulatedClock
    url: str
    capsys: pytest.CaptureFixture[str]

    def commit(self, replicas: int) -> None:
        (self.folder / "reconciler.yaml").write_text(dump(CONFIG))
        (self.folder.parent / "types.json").write_bytes(catalog_file())
        objects = [NODE_CLASS, NODE_POOL, a_deployment(replicas)]
        (self.folder / "fleet.yaml").write_text(dump_all(objects))

    def words(self, command: str, *more: str) -> list[str]:
        now = ["--now", f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}"]
        endpoint = ["--set", f"aws.endpointUrl={self.url}"]
        if command in ("plan", "apply", "run"):
            endpoint += ["--catalog", str(self.folder.parent / "types.json")]
        return [command, str(self.folder), *now, *endpoint, *more]

    def run(self, command: str, *more: str, codes: tuple[int, ...] = (0,)) -> str:
        self.capsys.readouterr()
        code = main(self.words(command, *more))
        printed = self.capsys.readouterr()
        assert code in codes, printed.err
        return printed.out

    def query(self, *words: str) -> Any:
        return json.loads(self.run(*words, "-o", "json"))

    def images(self) -> set[str]:
        rows = self.cloud.connect("ec2", 1).describe_instances(
            Filters=[{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        )["Reservations"]
        return {i["ImageId"] for row in rows for i in row["Instances"]}

    def templates(self) -> list[str]:
        rows = self.cloud.connect("ec2", 1).describe_launch_templates()["LaunchTemplates"]
        return [row["LaunchTemplateName"] for row in rows]

    def names(self) -> list[str]:
        return [tags.get("Name", "") for tags in self.cloud.running_instances().values()]

    def rests(self, nodes: int) -> bool:
        """Return whether the fleet has that number of instances, all of them tagged."""
        return len(self.names()) == nodes and all(self.names())

    def warn(self, instance: str, *, waits: bool = True) -> None:
        """Send the event that EC2 reclaims an instance through the queue of EventBridge.

        It waits until a running daemon has received the event.
        """
        event = {
            "version": "0",
            "source": "aws.ec2",
            "detail-type": "EC2 Spot Instance Interruption Warning",
            "time": f"{self.clock.now():%Y-%m-%dT%H:%M:%SZ}",
            "detail": {"instance-id": instance, "instance-action": "terminate"},
        }
        sqs = self.cloud.connect("sqs", 1)
        url = sqs.get_queue_url(QueueName=QUEUE)["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody=json.dumps(event))
        if waits:
            wait_for(lambda: self.waiting(url) == 0, at_most_s=60)

    def waiting(self, url: str) -> int:
        """Return the number of messages that were not received yet."""
        name = "ApproximateNumberOfMessages"
        found = self.cloud.connect("sqs", 1).get_queue_attributes(
            QueueUrl=url, AttributeNames=[name]
        )
        return int(found["Attributes"][name])

    def keep(self, *story: tuple[Callable[[], bool], Callable[[], None]]) -> None:
        """Run the daemon: as soon as a condition holds, run its action, then wait for the next."""
        chapters, looks = list(story), iter(range(3000))

        def stop() -> bool:
            assert next(looks, None) is not None, f"{len(chapters)} chapters are left"
            if chapters and chapters[0][0]():
                chapters.pop(0)[1]()
            return not chapters

        request = replace(request_of(self.words("run")), waits=False)
        connect = cache(connector(Settings(endpoint_url=self.url)))
        daemon.FleetDaemon(
            request, NullNotifier(), stop, Environment(self.clock, connect, workers=1)
        ).run()


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Shop]:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "shop"
    folder.mkdir()
    clock = SimulatedClock(START)
    cloud = EmbeddedEC2(clock)
    cloud.seed(decode(NODE_CLASS, EC2NodeClass))
    cloud.publish("ami-first", "shop-1", START - timedelta(days=1))
    cloud.connect("sqs", 1).create_queue(QueueName=QUEUE)
    with serve(cloud) as url:
        made = Shop(folder, cloud, clock, url, capsys)
        made.commit(2)
        yield made


def test_a_fleet_goes_through_its_life_cycle_and_leaves_nothing_behind(shop: Shop) -> None:
    planned = shop.query("plan")
    assert [a["kind"] for a in planned["actions"]] == ["provision", "provision"]
    assert shop.templates() == []

    applied = shop.query("apply", "--auto-approve")
    assert (applied["converged"], applied["actions"]) == (True, {"succeeded": 2})
    assert shop.rests(2)
    assert shop.images() == {"ami-first"}
    assert len(shop.templates()) == 1
    first = set(shop.cloud.running_instances())
    shop.clock.advance(120)

    def publish() -> None:
        shop.cloud.publish("ami-second", "shop-2", shop.clock.now())
        drift = shop.query("plan")["drift"]
        assert [(d["reason"], d["side"]) for d in drift] == [("AMIDrift", "world")] * 2

    def interrupt() -> None:
        assert shop.images() == {"ami-second"}
        assert not first & set(shop.cloud.running_instances())
        shop.warn(min(shop.cloud.running_instances()))
        interrupted.append(min(shop.cloud.running_instances()))

    def scale_down() -> None:
        assert interrupted[0] not in shop.cloud.running_instances()
        shop.commit(0)

    interrupted: list[str] = []
    shop.keep(
        (lambda: shop.rests(2), publish),
        (lambda: shop.images() == {"ami-second"} and shop.rests(2), interrupt),
        (
            lambda: interrupted[0] not in shop.cloud.running_instances() and shop.rests(2),
            scale_down,
        ),
        (lambda: shop.rests(0), lambda: None),
        (lambda: shop.templates() == [], lambda: None),
        (lambda: shop.query("status")["commands"] == [], lambda: None),
    )

    assert shop.cloud.running_instances() == {}
    history = shop.query("history", "--limit", "1000")["items"]
    reasons = {row["spec"]["reason"].partition(":")[0] for row in history}
    assert {"Unschedulable", "Drifted", "Interrupted", "Empty", "Unused"} <= reasons
    because = {r["spec"]["reason"] for r in history if r["spec"]["verb"] == "terminate"}
    assert any(
        r.startswith("Interrupted: spot interruption warning at 2026-03-02") for r in because
    )
    assert {row["status"]["outcome"] for row in history} == {"succeeded"}
    status = shop.query("status")
    assert (status["commands"], status["inDoubt"]) == ([], [])
    assert status["progress"]["finished"]
    assert set(status["progress"]["states"]) == {"succeeded"}
    ours = [row["status"]["action"] for row in history if row["spec"]["verb"] in SERVING]
    assert {action["state"] for action in ours} == {"succeeded"}
    launched = [row for row in history if row["spec"]["verb"] == "launch"]
    assert len(launched) == len({row["status"]["message"] for row in launched}) == 5
