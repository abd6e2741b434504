"""An episode without names shows nothing that somebody named, and has the same verdicts."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from reconciler.assembly.capturing import anonymize_objects
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.cli.main import main
from reconciler.desired.hash import object_hash
from reconciler.model.karpenter.prediction import Score
from reconciler.watch.episodes.anonymizing import anonymize_episode, encoder_without_names
from reconciler.watch.episodes.episode import encode_episode
from reconciler.watch.episodes.file import EpisodeFile, decode_episode
from reconciler.watch.episodes.folder import episode_saver
from reconciler.watch.episodes.replay import replay
from reconciler.watch.planning import planner_of
from tests.cli.test_snapshot_anonymized import secret_cluster

EPISODES = (
    Path(os.environ.get("CONFORMANCE") or Path(__file__).parents[3] / "shared/conformance")
    / "episodes"
)
SAMPLE = ("b1-two-pools-taints", "e1-wave")
"""Those of a default run: launches for NodePools with taints, and a command."""


def recordings() -> Iterator[Any]:
    for path in sorted(EPISODES.glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz")
        marks = [] if name in SAMPLE else [pytest.mark.exhaustive]
        yield pytest.param(path, id=name, marks=marks)


def outcome(score: Score) -> tuple[Any, ...]:
    """Return what a score says without the names of nodes."""
    action = score.action
    command = action.command
    done = None if command is None else (command.reason, len(command.nodes))
    cost = (round(score.expected or 0, 6), round(score.actual or 0, 6))
    return score.verdict, action.at, len(action.launches), done, cost


@pytest.mark.parametrize("path", list(recordings()))
def test_a_recording_without_names_has_the_same_verdicts(path: Path) -> None:
    request = FleetRequest(
        is_of_cluster=True,
        catalog=str(EPISODES / "catalog.json"),
        settings=("decide=karpenter", "aws.region=us-east-1"),
    )
    episode = decode_episode(path.read_bytes(), path.name)
    shared = anonymize_episode(episode, request)
    content = encode_episode(shared)
    names = {o["metadata"]["name"] for o in episode.snapshot.items if o["kind"] == "Pod"}
    names |= {claim.name for claim in episode.created}
    text = gzip.decompress(content).decode()
    assert [name for name in names if name in text] == []
    predict = planner_of(request)
    found, again = replay(episode, predict), replay(decode_episode(content, "x"), predict)
    assert [outcome(score) for score in again] == [outcome(score) for score in found]


POOL = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "web"},
    "spec": {
        "template": {
            "spec": {
                "nodeClassRef": {"group": "example.com", "kind": "Machine", "name": "default"},
                "requirements": [],
            }
        }
    },
}
AT = "2026-03-02T09:00:00Z"


def labels(name: str) -> dict[str, str]:
    return {
        "karpenter.sh/nodepool": "web",
        "karpenter.sh/capacity-type": "on-demand",
        "node.kubernetes.io/instance-type": "m5.large",
        "topology.kubernetes.io/zone": "us-east-1a",
        "secret.example/owner": name,
    }


def secret_episode() -> dict[str, Any]:
    """Return an episode in which everything that a user names has ``secret`` in its name."""
    claim = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": "secret-claim-1", "labels": labels("secret-owner")},
        "status": {"nodeName": "secret-node.internal"},
    }
    row = {
        "node": "secret-node.internal",
        "claim": "secret-claim-1",
        "nodePool": "web",
        "instanceType": "m5.large",
        "zone": "us-east-1a",
        "capacityType": "on-demand",
        "pods": ["secret-namespace/secret-pod"],
    }
    line = {
        "time": AT,
        "message": "disrupting node(s)",
        "command": "Empty/secret-uid: delete: [secret-node.internal]",
        "disrupted-nodes": [{"Node": {"name": "secret-node.internal"}}],
        "replacement-node-count": 0,
        "replacement-nodes": [],
    }
    other = {"time": AT, "message": "secret message", "Pods": "secret-namespace/secret-pod"}
    node = {"nodePool": "web", "instanceType": "m5.large", "zone": "us-east-1a"}
    node |= {"capacityType": "on-demand", "name": "secret-node.internal"}
    predicted = {"at": AT, "commands": [{"reason": "Drifted", "nodes": [node]}]}
    return {
        "name": "secret-name",
        "about": "wrong: secret cause",
        "now": AT,
        "pools": [POOL],
        "before": [row],
        "after": [{**row, "node": "secret-new", "claim": "secret-new"}],
        "pending": ["secret-namespace/secret-pod"],
        "log": [line, other],
        "created": [
            {"name": "secret-new", "at": 1, "nodePool": "web", "labels": labels("secret-new")}
        ],
        "removed": [{"name": "secret-claim-1", "at": 2}],
        "predicted": predicted,
        "snapshot": {"items": [*secret_cluster(), claim, POOL]},
        "secret-field": "secret",
    }


def saved(folder: Path, episode: dict[str, Any]) -> Path:
    file = folder / "miss.json.gz"
    file.write_bytes(gzip.compress(json.dumps(episode).encode()))
    return file


def test_no_name_remains_in_the_bytes_of_a_shared_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    file = saved(tmp_path, secret_episode())
    words = ["watch", "replay", str(file), "--set", "aws.region=us-east-1"]
    words += ["--set", "decide=karpenter"]
    status = main(words)
    verdicts = capsys.readouterr().out
    assert main([*words, "--anonymize", "--out", "shared"]) == status
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (verdicts, "")
    text = gzip.decompress(Path("shared/miss.json.gz").read_bytes()).decode()
    assert re.findall(r"\w*secret[\w.-]*", text, re.IGNORECASE) == []
    assert main(["watch", "replay", "shared/miss.json.gz", *words[3:]]) == status
    assert "wrong: Empty" in capsys.readouterr().out


def without_names(episode: dict[str, Any]) -> EpisodeFile:
    found = decode_episode(encode_episode(episode), "the test")
    return anonymize_episode(found, FleetRequest(is_of_cluster=True))


def test_replaced_names_still_refer_to_each_other() -> None:
    shared = without_names(secret_episode())
    (node,) = [o for o in shared.snapshot.items if o["kind"] == "Node"]
    (claim,) = [o for o in shared.snapshot.items if o["kind"] == "NodeClaim"]
    name = node["metadata"]["name"]
    assert claim["status"]["nodeName"] == name
    assert shared.before[0].node == name
    assert [gone.node.name for gone in shared.log[0].disrupted_nodes] == [name]
    assert shared.pools[0]["metadata"]["name"] == shared.before[0].node_pool == "web"


def test_a_watch_saves_episodes_without_names(tmp_path: Path) -> None:
    encode = encoder_without_names(FleetRequest(is_of_cluster=True))
    save = episode_saver(str(tmp_path / "misses"), lambda text: None, encode)
    file = save(secret_episode() | {"name": "launch-1"})
    text = gzip.decompress(Path(file).read_bytes()).decode()
    assert re.findall(r"\w*secret[\w.-]*", text, re.IGNORECASE) == []
    assert decode_episode(Path(file).read_bytes(), file).pools[0]["metadata"]["name"] == "web"


@pytest.mark.parametrize("words", [["--anonymize"], ["--out", "x"]])
def test_names_are_replaced_only_where_the_folder_is_named(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", "replay", "x.json.gz", *words]) == 1
    assert "--anonymize and --out go together" in capsys.readouterr().err


NODE_CLASS: dict[str, Any] = {
    "apiVersion": "karpenter.k8s.aws/v1",
    "kind": "EC2NodeClass",
    "metadata": {"name": "default"},
    "spec": {
        "amiFamily": "AL2023",
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "subnetSelectorTerms": [{"tags": {"team": "secret-team"}}],
        "securityGroupSelectorTerms": [{"name": "secret-group"}],
        "capacityReservationSelectorTerms": [
            {"ownerID": "123456789012", "tags": {"secret-tag": "secret-c"}}
        ],
        "role": "secret-role",
        "userData": "#!/bin/sh\necho secret-password",
        "tags": {"team": "secret-payments"},
        "blockDeviceMappings": [
            {
                "deviceName": "/dev/xvda",
                "ebs": {
                    "volumeSize": "40Gi",
                    "volumeType": "gp3",
                    "encrypted": True,
                    "kmsKeyID": "arn:aws:kms:us-east-1:123456789012:key/secret",
                },
            }
        ],
        "metadataOptions": {"httpTokens": "required"},
        "kubelet": {
            "clusterDNS": ["10.66.6.6"],
            "maxPods": 29,
            "systemReserved": {"cpu": "100m", "memory": "200Mi"},
            "evictionHard": {"memory.available": "5%"},
            "evictionSoft": {"nodefs.available": "10%"},
            "evictionSoftGracePeriod": {"nodefs.available": "1m30s"},
        },
        "instanceStorePolicy": "RAID0",
    },
    "status": {
        "subnets": [{"id": "subnet-1", "zone": "us-east-1a", "zoneID": "use1-az1"}],
        "securityGroups": [{"id": "sg-1"}],
        "amis": [
            {
                "id": "ami-1",
                "requirements": [
                    {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}
                ],
            }
        ],
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}
AWS_POOL: dict[str, Any] = {
    "apiVersion": "karpenter.sh/v1",
    "kind": "NodePool",
    "metadata": {"name": "web"},
    "spec": {
        "template": {
            "metadata": {"annotations": {"secret.example/a": "secret-annotation"}},
            "spec": {
                "nodeClassRef": {
                    "group": "karpenter.k8s.aws",
                    "kind": "EC2NodeClass",
                    "name": "default",
                },
                "requirements": [],
                "expireAfter": "480h",
                "terminationGracePeriod": "1h",
            },
        },
        "disruption": {
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "consolidateAfter": "1m",
            "budgets": [
                {"nodes": "20%", "reasons": ["Underutilized"]},
                {"nodes": "100%", "schedule": "0 9 * * MON-FRI", "duration": "8h"},
                {"nodes": "3", "schedule": "@daily", "duration": "10m"},
            ],
        },
        "limits": {"cpu": "1000"},
    },
}


@pytest.mark.parametrize("drifted", [False, True])
def test_a_cluster_with_a_node_class_of_ec2_can_be_planned_without_names(drifted: bool) -> None:
    changed = {**NODE_CLASS, "spec": {**NODE_CLASS["spec"], "role": "secret-other"}}
    made_from = changed if drifted else NODE_CLASS
    pool_hash, class_hash = object_hash(AWS_POOL), object_hash(made_from)
    assert pool_hash is not None
    assert class_hash is not None
    annotations = {
        "karpenter.sh/nodepool-hash": pool_hash[0],
        "karpenter.sh/nodepool-hash-version": pool_hash[1],
        "karpenter.k8s.aws/ec2nodeclass-hash": class_hash[0],
        "karpenter.k8s.aws/ec2nodeclass-hash-version": class_hash[1],
    }
    provider = "aws:///us-east-1a/i-0123456789abcdef0"
    registered = [
        {"type": kind, "status": "True", "lastTransitionTime": "2026-03-02T08:00:00Z"}
        for kind in ("Launched", "Registered", "Initialized", "Consolidatable")
    ]
    node_labels = labels("x") | {
        "karpenter.sh/registered": "true",
        "karpenter.sh/initialized": "true",
        "kubernetes.io/arch": "amd64",
    }
    size = {"cpu": "2", "memory": "8Gi", "pods": "29"}
    made_at = "2026-03-02T07:00:00Z"
    objects = [
        AWS_POOL,
        NODE_CLASS,
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {
                "name": "secret-claim",
                "labels": labels("x"),
                "annotations": annotations,
                "creationTimestamp": made_at,
            },
            "spec": {"nodeClassRef": AWS_POOL["spec"]["template"]["spec"]["nodeClassRef"]},
            "status": {
                "nodeName": "secret-node",
                "providerID": provider,
                "imageID": "ami-1",
                "conditions": registered,
                "capacity": size,
                "allocatable": size,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "secret-pod",
                "namespace": "secret-namespace",
                "creationTimestamp": made_at,
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "secret", "uid": "u"}
                ],
            },
            "spec": {
                "nodeName": "secret-node",
                "containers": [
                    {"name": "secret", "resources": {"requests": {"cpu": "1", "memory": "6Gi"}}}
                ],
            },
            "status": {"phase": "Running"},
        },
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": "secret-node",
                "labels": node_labels,
                "creationTimestamp": made_at,
            },
            "spec": {"providerID": provider},
            "status": {
                "capacity": size,
                "allocatable": size,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        },
    ]
    request = FleetRequest(
        is_of_cluster=True, settings=("decide=karpenter", "aws.region=us-east-1")
    )
    shared = anonymize_objects(objects, request, has_fleet=False)
    text = json.dumps(shared)
    assert re.findall(r"\w*secret[\w.-]*", text, re.IGNORECASE) == []
    assert "10.66.6.6" not in text
    assert "123456789012" not in text
    predict = planner_of(request)
    now = datetime(2026, 3, 3, 12, tzinfo=UTC)
    reasons = [
        [command.reason for command in predict(found, now).plan.commands]
        for found in (objects, list(shared))
    ]
    assert reasons[0] == reasons[1]
    assert ("Drifted" in reasons[0]) == drifted
