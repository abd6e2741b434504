"""``snapshot --anonymize``: no name remains, references still match, and plans decide alike."""

from __future__ import annotations

import copy
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.assembly.capturing import anonymize_objects
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.cli.main import main
from tests.completeobjects import KINDS, complete_object, paths, replaced

SCENARIOS = (
    Path(os.environ.get("CONFORMANCE") or Path(__file__).parents[3] / "shared/conformance")
    / "scenarios"
)
DESIRED = ("NodePool", "NodeOverlay", "EC2NodeClass", "TestNodeClass", "KWOKNodeClass")
SAMPLE = 45
"""Of this many scenarios in a folder, one is planned: all would take minutes."""
USUAL = 3
"""Of this many samples, one is planned in a default run."""
RESOURCES = {
    "Pod": "pods",
    "Node": "nodes",
    "NodeClaim": "nodeclaims.karpenter.sh",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "PersistentVolumeClaim": "persistentvolumeclaims",
    "PersistentVolume": "persistentvolumes",
    "StorageClass": "storageclasses",
    "CSINode": "csinodes",
    "DaemonSet": "daemonsets",
    "Namespace": "namespaces",
    "PriorityClass": "priorityclasses",
    "CapacityBuffer": "capacitybuffers.autoscaling.x-k8s.io",
    "PodTemplate": "podtemplates",
    "Deployment": "deployments.apps",
    "StatefulSet": "statefulsets.apps",
    "Service": "services",
    "NodePool": "nodepools.karpenter.sh",
}
Plain = dict[str, Any]


def kubectl_of(folder: Path, objects: list[Plain]) -> str:
    """Return a program that prints these objects as kubectl does."""
    lists: dict[str, list[Plain]] = {}
    for item in objects:
        lists.setdefault(RESOURCES.get(item["kind"], "others"), []).append(item)
    for resource, items in lists.items():
        (folder / f"{resource}.json").write_text(json.dumps({"kind": "List", "items": items}))
    program = folder / "kubectl"
    empty = """echo '{"kind": "List", "items": []}'"""
    program.write_text(f'#!/bin/sh\ncat "{folder}/$2.json" 2>/dev/null || {empty}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def scenarios() -> Iterator[Any]:
    for group in ("placement", "disruption", "random", "aws"):
        for number, path in enumerate(sorted((SCENARIOS / group).glob("*.json"))[::SAMPLE]):
            found = json.loads(path.read_text())
            scenario = found[0] if isinstance(found, list) else found
            if (scenario.get("expect") or {}).get("valid") is not False:
                marks = [pytest.mark.exhaustive] if number % USUAL else []
                yield pytest.param(path, scenario, id=f"{group}-{path.stem}", marks=marks)


def catalog_of(scenario: Plain, path: Path) -> Any:
    catalog = scenario["catalog"]
    if isinstance(catalog, list):
        return catalog
    folders = (path.parent / "catalogs", SCENARIOS.parent / "catalogs")
    return next(
        json.loads(file.read_text())
        for file in (folder / f"{catalog}.json" for folder in folders)
        if file.exists()
    )


def settings_of(scenario: Plain) -> Iterator[str]:
    for key, value in (scenario.get("settings") or {}).items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for sub, item in parts:
            text = str(item).lower() if isinstance(item, bool) else str(item)
            yield from ("--set", f"{key}.{sub}={text}" if sub else f"{key}={text}")


def decided(plan: Plain, nodes: list[str]) -> Plain:
    """Return the decisions of a plan; nodes by their position in the order of names."""
    place = {name: number for number, name in enumerate(sorted(nodes))}
    claims = (
        (c["nodePool"], sorted(c["instanceTypes"]), len(c.get("pods", ())))
        for c in plan["nodeClaims"]
    )
    commands = ((c["reason"], sorted(place[name] for name in c["nodes"])) for c in plan["commands"])
    return {
        "launched": sorted(claims),
        "removed": sorted(commands),
        "cost": plan["cost"],
        "placed": len(plan["placements"]),
        "unschedulable": len(plan["unschedulable"]),
    }


def nodes_of(content: str) -> list[str]:
    items = json.loads(content)["items"]
    return [item["metadata"]["name"] for item in items if item["kind"] == "Node"]


@pytest.mark.parametrize(("path", "scenario"), list(scenarios()))
def test_an_anonymized_snapshot_gives_the_same_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: Path, scenario: Plain
) -> None:
    fleet, catalog = tmp_path / "fleet", tmp_path / "catalog.json"
    fleet.mkdir()
    catalog.write_text(json.dumps(catalog_of(scenario, path)))
    mine = [o for o in scenario["objects"] if o["kind"] in DESIRED]
    for number, item in enumerate(mine):
        (fleet / f"{number:03}.yaml").write_text(json.dumps(item))
    kubectl = kubectl_of(tmp_path, [o for o in scenario["objects"] if o not in mine])
    with_catalog = ["--catalog", str(catalog)]
    found = []
    for more in ([], ["--anonymize"]):
        out = tmp_path / "cluster.json"
        words = ["--kubectl", kubectl, "--out", str(out), *with_catalog, *more]
        assert main(["snapshot", str(fleet), *words]) == 0
        now = ["--now", scenario.get("now") or "2026-01-01T00:00:00Z"]
        words = ["--snapshot", str(out), *with_catalog, *now, *settings_of(scenario)]
        capsys.readouterr()
        assert main(["plan", str(fleet), *words, "-o", "json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        found.append(decided(plan, nodes_of(out.read_text())))
    assert found[0] == found[1]


POOL = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general}
spec:
  template:
    metadata: {labels: {example.com/team: payments}}
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
        - {key: example.com/tier, operator: Exists}
        - {key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}
      taints: [{key: example.com/dedicated, value: shop, effect: NoSchedule}]
"""
KEPT_BY_THE_FLEET = ("example.com/team", "example.com/tier", "example.com/dedicated", "general")


def meta(name: str, **more: object) -> Plain:
    return {"name": name, **more}


def secret_cluster() -> list[Plain]:
    """A cluster in which everything that a user names has ``secret`` in its name."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "secret-rs", "uid": "secret-u"}
    selector = {"matchLabels": {"secret.example/app": "secret-app"}}
    pod = {
        "containers": [
            {
                "name": "secret-container",
                "image": "registry.secret.example/secret:1",
                "command": ["secret-command"],
                "env": [{"name": "SECRET", "value": "secret-value"}],
                "envFrom": [{"secretRef": {"name": "secret-ref"}}],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                "ports": [{"name": "secret-port", "hostPort": 80, "hostIP": "10.66.6.6"}],
            }
        ],
        "nodeName": "secret-node.internal",
        "serviceAccountName": "secret-account",
        "priorityClassName": "secret-priority",
        "schedulerName": "secret-scheduler",
        "imagePullSecrets": [{"name": "secret-pull"}],
        "nodeSelector": {"example.com/team": "payments", "secret.example/zone": "secret-zone"},
        "tolerations": [
            {"key": "example.com/dedicated", "value": "shop"},
            {"key": "secret.example/taint", "value": "secret-value"},
        ],
        "affinity": {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": selector,
                        "namespaces": ["secret-namespace"],
                        "topologyKey": "kubernetes.io/hostname",
                    }
                ]
            }
        },
        "topologySpreadConstraints": [
            {"topologyKey": "secret.example/rack", "maxSkew": 1, "labelSelector": selector}
        ],
        "volumes": [
            {"name": "secret-volume", "persistentVolumeClaim": {"claimName": "secret-claim"}},
            {"name": "secret-config", "configMap": {"name": "secret-map"}},
            {"name": "secret-eph", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
        ],
    }
    labels = {"secret.example/app": "secret-app", "app.kubernetes.io/name": "secret-app"}
    place = {"namespace": "secret-namespace"}
    hidden = {"secret.example/note": "secret-note", "karpenter.sh/do-not-disrupt": "true"}
    node_labels = {
        "kubernetes.io/hostname": "secret-node.internal",
        "topology.kubernetes.io/zone": "us-west-2a",
        "node.kubernetes.io/instance-type": "m5.large",
        "karpenter.sh/nodepool": "general",
        "example.com/team": "payments",
        "eks.amazonaws.com/nodegroup": "secret-group",
        "secret.example/rack": "secret-rack",
    }
    waiting = {"type": "PodScheduled", "status": "True", "message": "secret message"}
    return [
        {"kind": "Namespace", "metadata": meta("secret-namespace", labels={
            "kubernetes.io/metadata.name": "secret-namespace"})},
        {"kind": "Node", "metadata": meta("secret-node.internal", labels=node_labels,
                                          annotations=hidden),
         "spec": {"providerID": "aws:///us-west-2a/i-0123456789abcdef0",
                  "taints": [{"key": "secret.example/taint", "value": "secret-value",
                              "effect": "NoSchedule"}]},
         "status": {"images": [{"names": ["secret-image"]}], "capacity": {"cpu": "2"}}},
        {"kind": "CSINode", "metadata": meta("secret-node.internal"),
         "spec": {"drivers": [{"name": "secret.csi.example", "allocatable": {"count": 9}},
                              {"name": "ebs.csi.aws.com", "allocatable": {"count": 25}}]}},
        {"kind": "Pod", "metadata": meta(
            "secret-pod", **place, labels=labels, annotations=hidden, ownerReferences=[owner],
            generateName="secret-"), "spec": pod,
         "status": {"phase": "Running", "conditions": [waiting]}},
        {"kind": "PersistentVolumeClaim", "metadata": meta("secret-claim", **place),
         "spec": {"storageClassName": "secret-class", "volumeName": "secret-pv"}},
        {"kind": "PersistentVolumeClaim", "metadata": meta("secret-pod-secret-eph", **place),
         "spec": {"storageClassName": "secret-class", "volumeName": "secret-pv2"}},
        {"kind": "PersistentVolume", "metadata": meta("secret-pv"),
         "spec": {"local": {"path": "/mnt/secret"}, "storageClassName": "secret-class"}},
        {"kind": "StorageClass", "metadata": meta("secret-class"),
         "provisioner": "ebs.csi.aws.com"},
        {"kind": "PriorityClass", "metadata": meta("secret-priority"), "value": 7},
        {"kind": "PodDisruptionBudget", "metadata": meta("secret-budget", **place),
         "spec": {"selector": selector, "maxUnavailable": "10%"}},
        {"kind": "Deployment", "metadata": meta("secret-deployment", **place),
         "spec": {"selector": selector, "template": {"metadata": {"labels": labels},
                                                     "spec": pod}}},
        {"kind": "Service", "metadata": meta("secret-service", **place),
         "spec": {"selector": {"secret.example/app": "secret-app"}}},
    ]  # fmt: skip


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    folder.mkdir()
    (folder / "pool.yaml").write_text(POOL)
    return folder


def captured(tmp_path: Path, *words: str) -> str:
    out = tmp_path / "cluster.json"
    kubectl = kubectl_of(tmp_path, secret_cluster())
    assert main(["snapshot", *words, "--kubectl", kubectl, "--out", str(out)]) == 0
    return out.read_text()


def by_kind(text: str) -> dict[str, list[Plain]]:
    found: dict[str, list[Plain]] = {}
    for item in json.loads(text)["items"]:
        found.setdefault(item["kind"], []).append(item)
    return found


def test_no_name_remains_in_the_bytes(tmp_path: Path, fleet: Path) -> None:
    assert len(re.findall("secret", captured(tmp_path, str(fleet)))) > 60
    text = captured(tmp_path, str(fleet), "--anonymize")
    assert re.findall(r"\w*secret[\w.-]*", text, re.IGNORECASE) == []
    assert "10.66.6.6" not in text


def test_the_time_of_the_capture_is_kept(fleet: Path) -> None:
    at = "2026-11-26T08:57:52.157449Z"
    capture = {"apiVersion": "reconciler/v1", "kind": "SnapshotCapture", "at": at}
    (found,) = anonymize_objects([capture], FleetRequest(path=str(fleet)), has_fleet=True)
    assert found["at"] == at


def test_references_still_match(tmp_path: Path, fleet: Path) -> None:
    found = by_kind(captured(tmp_path, str(fleet), "--anonymize"))
    ((pod,), (node,)) = found["Pod"], found["Node"]
    spec, namespace = pod["spec"], pod["metadata"]["namespace"]
    assert spec["nodeName"] == node["metadata"]["name"] == found["CSINode"][0]["metadata"]["name"]
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == spec["nodeName"]
    (home,) = found["Namespace"]
    assert home["metadata"]["name"] == namespace
    assert home["metadata"]["labels"]["kubernetes.io/metadata.name"] == namespace
    (term,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["namespaces"] == [namespace]
    selected = term["labelSelector"]["matchLabels"].items()
    assert selected <= pod["metadata"]["labels"].items()
    assert found["PodDisruptionBudget"][0]["spec"]["selector"]["matchLabels"].items() == selected
    assert found["Service"][0]["spec"]["selector"].items() == selected
    claims = {claim["metadata"]["name"]: claim for claim in found["PersistentVolumeClaim"]}
    named, ephemeral = (
        spec["volumes"][0]["persistentVolumeClaim"]["claimName"],
        f"{pod['metadata']['name']}-{spec['volumes'][2]['name']}",
    )
    assert set(claims) == {named, ephemeral}
    (volume,) = found["PersistentVolume"]
    assert claims[named]["spec"]["volumeName"] == volume["metadata"]["name"]
    (storage,) = found["StorageClass"]
    assert claims[named]["spec"]["storageClassName"] == storage["metadata"]["name"]
    assert spec["priorityClassName"] == found["PriorityClass"][0]["metadata"]["name"]
    (taint,) = node["spec"]["taints"]
    assert (taint["key"], taint["value"]) == tuple(spec["tolerations"][1].values())
    (spread,) = spec["topologySpreadConstraints"]
    assert spread["topologyKey"] in node["metadata"]["labels"]


def test_names_used_by_decisions_and_the_fleet_are_kept(tmp_path: Path, fleet: Path) -> None:
    text = captured(tmp_path, str(fleet), "--anonymize")
    for word in ("us-west-2a", "m5.large", "ebs.csi.aws.com", "i-0123456789abcdef0", "payments"):
        assert word in text
    ((pod,), (node,)) = by_kind(text)["Pod"], by_kind(text)["Node"]
    labels = node["metadata"]["labels"]
    assert (labels["example.com/team"], labels["karpenter.sh/nodepool"]) == ("payments", "general")
    assert pod["metadata"]["annotations"] == {"karpenter.sh/do-not-disrupt": "true"}
    assert pod["spec"]["tolerations"][0] == {"key": "example.com/dedicated", "value": "shop"}


def test_names_used_only_by_another_fleet_are_replaced(tmp_path: Path, fleet: Path) -> None:
    (fleet / "pool.yaml").write_text(POOL.replace("example.com/team: payments", "a: b"))
    text = captured(tmp_path, str(fleet), "--anonymize")
    assert "payments" not in text
    assert "example.com/team" not in text
    assert "example.com/dedicated" in text


def names(text: str) -> list[str]:
    return [item["metadata"]["name"] for item in json.loads(text)["items"]]


def test_with_a_key_names_are_equal_across_snapshots(
    tmp_path: Path, fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECONCILER_ANONYMIZE_KEY", "0123456789abcdef")
    first = captured(tmp_path, str(fleet), "--anonymize")
    assert captured(tmp_path, str(fleet), "--anonymize") == first
    monkeypatch.setenv("RECONCILER_ANONYMIZE_KEY", "another-key-of-16")
    second = captured(tmp_path, str(fleet), "--anonymize")
    assert set(names(first)).isdisjoint(names(second))


def test_without_a_key_each_snapshot_has_different_names(tmp_path: Path, fleet: Path) -> None:
    found = [names(captured(tmp_path, str(fleet), "--anonymize")) for _ in range(2)]
    assert set(found[0]).isdisjoint(found[1])


def test_a_short_key_is_refused(
    tmp_path: Path,
    fleet: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RECONCILER_ANONYMIZE_KEY", "hunter2")
    out = tmp_path / "cluster.json"
    kubectl = kubectl_of(tmp_path, secret_cluster())
    words = [str(fleet), "--kubectl", kubectl, "--out", str(out), "--anonymize"]
    assert main(["snapshot", *words]) == 1
    output = capsys.readouterr().err
    assert "the key has 7 bytes, fewer than 16" in output
    assert "hunter2" not in output
    assert not out.exists()


CLASS: Plain = {
    "kind": "EC2NodeClass",
    "apiVersion": "karpenter.k8s.aws/v1",
    "metadata": {"name": "default", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {
        "amiFamily": "AL2023",
        "amiSelectorTerms": [
            {"alias": "al2023@latest", "name": "image", "owner": "self", "id": "ami-1",
             "ssmParameter": "/x", "tags": {"t": "u"}},
        ],
        "subnetSelectorTerms": [{"tags": {"t": "u"}, "id": "subnet-1"}],
        "securityGroupSelectorTerms": [{"tags": {"t": "u"}, "name": "g", "id": "sg-1"}],
        "capacityReservationSelectorTerms": [{"tags": {"t": "u"}, "ownerID": "1"}],
        "role": "nodes",
        "instanceProfile": "nodes",
        "userData": "#!/bin/sh\necho password",
        "context": "context",
        "tags": {"team": "payments"},
        "blockDeviceMappings": [
            {"deviceName": "/dev/xvda", "ebs": {"kmsKeyID": "key", "volumeType": "gp3"}},
        ],
        "metadataOptions": {"httpTokens": "required"},
        "kubelet": {"clusterDNS": ["10.0.0.10"], "evictionHard": {"memory.available": "5%"}},
        "instanceStorePolicy": "RAID0",
    },
    "status": {
        "instanceProfile": "profile",
        "amis": [{"id": "ami-1", "name": "image", "requirements": [
            {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}]}],
        "subnets": [{"id": "subnet-1", "zone": "us-west-2a", "zoneID": "usw2-az1"}],
        "securityGroups": [{"id": "sg-1", "name": "group"}],
        "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "m"}],
    },
}  # fmt: skip
LIVE_POOL: Plain = {
    "kind": "NodePool",
    "apiVersion": "karpenter.sh/v1",
    "metadata": {"name": "general", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {
        "template": {
            "metadata": {"labels": {"l": "m"}, "annotations": {"n": "o"}},
            "spec": {
                "nodeClassRef": {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "x"},
                "requirements": [{"key": "k", "operator": "In", "values": ["v"]}],
                "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
                "startupTaints": [{"key": "k", "value": "v", "effect": "NoSchedule"}],
                "expireAfter": "720h",
                "terminationGracePeriod": "1h",
            },
        },
        "disruption": {
            "consolidationPolicy": "WhenEmpty",
            "consolidateAfter": "30s",
            "budgets": [{"nodes": "10%", "schedule": "@daily", "reasons": ["Empty"]}],
        },
    },
    "status": {"conditions": [{"type": "Ready", "status": "True", "reason": "r"}]},
}  # fmt: skip
OVERLAY: Plain = {
    "kind": "NodeOverlay",
    "apiVersion": "karpenter.sh/v1alpha1",
    "metadata": {"name": "cheaper"},
    "spec": {"requirements": [{"key": "k", "operator": "In", "values": ["v"]}], "price": "0.1"},
}


OTHER_CLASS: Plain = {
    "kind": "GCENodeClass",
    "apiVersion": "karpenter.k8s.gcp/v1",
    "metadata": {"name": "other", "annotations": {"a": "b"}},
    "spec": {"serviceAccount": "nodes", "networkTags": ["a"], "metadata": {"a": "b"}},
    "status": {"conditions": [{"type": "Ready", "status": "True", "message": "m"}]},
}
SCALER: Plain = {
    "kind": "HorizontalPodAutoscaler",
    "apiVersion": "autoscaling/v2",
    "metadata": {"name": "web", "namespace": "shop", "annotations": {"a": "b"}},
    "spec": {"scaleTargetRef": {"kind": "Deployment", "name": "web"}, "maxReplicas": 3},
}
STYLES = ("canary{}bird", "CanaryBird{}", "canary.example.com/canary{}", "karpenter.sh/canary{}")
"""What somebody may call things: plain, like a kind or a reason, and like keys of two domains."""


def part(data: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        data = data[step]
    return data


def planted(kind: str, example: Plain) -> tuple[list[Plain], dict[int, str]]:
    """Return objects of a kind with a canary in one text or as one key each, and its place."""
    objects: list[Plain] = []
    places: dict[int, str] = {}

    def plant(item: Plain, path: tuple[Any, ...], more: str = "") -> None:
        steps = (str(step) for step in path if not isinstance(step, int))
        places[len(objects)] = ".".join(steps) + more
        if path != ("metadata", "name"):
            item["metadata"]["name"] = f"{kind.lower()}-{len(objects)}"
        objects.append(item)

    for style in STYLES:
        for path in ((), *paths(example)):
            value = part(example, path)
            canary = style.format(len(objects))
            if isinstance(value, str) and path not in (("kind",), ("apiVersion",)):
                plant(replaced(example, path, canary), path)
            elif isinstance(value, dict):
                item = copy.deepcopy(example)
                part(item, path)[canary] = next(iter(value.values()), "x")
                plant(item, path, " (key)")
    return objects, places


OF_CONTROLLERS = ("conditions.type", "conditions.reason")
"""Words that controllers write, and that people do not choose."""
SHOWN_ALONE = {
    "EC2NodeClass": {"metadata.name"},
    "NodeOverlay": {"metadata.name", "spec.requirements.key", "spec.requirements.values"},
    "NodePool": {
        "metadata.name",
        *(f"spec.template.spec.{name}.key" for name in ("requirements", "taints", "startupTaints")),
        "spec.template.spec.requirements.values",
        *(f"spec.template.spec.{name}.value" for name in ("taints", "startupTaints")),
        *("spec.template.metadata.labels.l", "spec.template.metadata.labels (key)"),
    },
}
"""What survives where no files are known: names, labels and limits of NodePools and overlays."""
EVERY_KIND = {
    **{kind: complete_object(kind) for kind in KINDS},
    **{item["kind"]: item for item in (CLASS, LIVE_POOL, OVERLAY, OTHER_CLASS, SCALER)},
}


@pytest.mark.parametrize("with_fleet", [True, False], ids=["with a fleet", "without a fleet"])
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_no_canary_in_any_text_of_an_object_survives(
    kind: str, with_fleet: bool, tmp_path: Path, fleet: Path
) -> None:
    objects, places = planted(kind, EVERY_KIND[kind])
    request = FleetRequest(path=str(fleet))
    text = json.dumps(anonymize_objects(objects, request, has_fleet=with_fleet))
    shown = {places[int(number)] for number in re.findall(r"[Cc]anary(?:Bird)?([0-9]+)", text)}
    shown = {place for place in shown if not place.endswith(OF_CONTROLLERS)}
    assert shown == (set() if with_fleet else SHOWN_ALONE.get(kind, set()))
    keys = [{**item, "metadata": {**item["metadata"], part: {"canary.example/bird": "x"}}}
            for item in objects[:1] for part in ("labels", "annotations")]  # fmt: skip
    assert "canary" not in json.dumps(anonymize_objects(keys, request, has_fleet=with_fleet))


def test_of_a_node_class_only_what_the_files_contain_is_kept(tmp_path: Path, fleet: Path) -> None:
    spec = {
        "role": "nodes",
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "subnetSelectorTerms": [{"tags": {"tier": "private"}}],
        "securityGroupSelectorTerms": [{"name": "workers"}],
        "tags": {"team": "payments"},
        "userData": "echo password",
    }
    mine = {**CLASS, "metadata": {"name": "default"}, "spec": spec}
    del mine["status"]
    (fleet / "class.json").write_text(json.dumps(mine))
    other = {
        "role": "admins",
        "amiSelectorTerms": [{"name": "golden-image"}],
        "tags": {"team": "rivals", "secret": "x"},
        "userData": "echo other",
    }
    changed = {**mine, "metadata": {"name": "other"}, "spec": {**spec, **other}}
    request = FleetRequest(path=str(fleet))
    known, foreign = sorted(
        anonymize_objects([mine, changed], request, has_fleet=True),
        key=lambda item: item["metadata"]["name"] != "default",
    )
    kept = {key for key, value in known["spec"].items() if value == spec[key]}
    assert kept == spec.keys() - {"userData"}
    assert {k for k, v in foreign["spec"].items() if v == spec.get(k)} == kept - other.keys()
    text = json.dumps([known, foreign])
    hidden = ("password", "admins", "golden", "rivals", "secret", "echo", '"other"')
    assert not [word for word in hidden if word in text]


def test_names_of_nodepools_that_the_files_do_not_have_are_replaced(
    tmp_path: Path, fleet: Path
) -> None:
    pool = {**LIVE_POOL, "metadata": {"name": "secret-pool"}}
    node = {"kind": "Node", "metadata": {"name": "n", "labels": {
        "karpenter.sh/nodepool": "secret-pool"}}}  # fmt: skip
    request = FleetRequest(path=str(fleet))
    found = anonymize_objects([pool, node], request, has_fleet=True)
    assert "secret" not in json.dumps(found)
    by_name = {item["kind"]: item["metadata"] for item in found}
    label = by_name["Node"]["labels"]["karpenter.sh/nodepool"]
    assert label == by_name["NodePool"]["name"]
