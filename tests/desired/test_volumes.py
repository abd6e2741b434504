"""Claims of a folder are bound as in a cluster; what is absent is assumed, with a note."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.desired.workloads.pods import Workloads, expand
from reconciler.model.diagnostics import Severity
from reconciler.model.kubernetes.storage import csi_driver
from reconciler.source.resource import Resource
from tests.desired.test_workloads import a, a_deployment, a_template

EBS = "ebs.csi.aws.com"
EFS = "efs.csi.aws.com"
ZONE = "topology.kubernetes.io/zone"


def a_claim(name: str = "data", size: str = "10Gi", **spec: Any) -> Resource:
    content = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
        **spec,
    }
    return a("PersistentVolumeClaim", name, spec=content)


def a_volume(name: str, size: str = "10Gi", **spec: Any) -> Resource:
    content = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": size},
        "csi": {"driver": EBS},
        **spec,
    }
    labels = content.pop("labels", {})
    return a("PersistentVolume", name, "", metadata={"labels": labels}, spec=content)


def a_class(name: str, provisioner: str = EBS, mode: str | None = None, **more: Any) -> Resource:
    modes = {} if mode is None else {"volumeBindingMode": mode}
    return a("StorageClass", name, "", provisioner=provisioner, **modes, **more)


def a_user(*claims: str) -> Resource:
    """Return a Deployment whose pod uses these claims."""
    volumes = [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]
    return a_deployment(replicas=1, volumes=volumes)


def bound(workloads: Workloads) -> dict[str, str]:
    """Return the volume of each claim, "" while it waits for a pod."""
    found = {}
    for claim in workloads.volume_claims:
        is_bound = claim.status.phase == "Bound"
        assert is_bound == ("pv.kubernetes.io/bind-completed" in claim.metadata.annotations)
        found[claim.metadata.name] = claim.spec.volume_name if is_bound else ""
    return found


@pytest.mark.parametrize(
    ("claim", "volumes", "expected"),
    [
        ({"storageClassName": "", "volumeName": "v"}, [a_volume("v")], "v"),
        ({"storageClassName": ""}, [a_volume("v")], "v"),
        ({"storageClassName": "manual"}, [a_volume("v", storageClassName="manual")], "v"),
        ({"storageClassName": ""}, [a_volume("large", "90Gi"), a_volume("v", "20Gi")], "v"),
        ({"storageClassName": ""}, [a_volume("v", "5Gi")], ""),
        ({"storageClassName": ""}, [a_volume("v", accessModes=["ReadOnlyMany"])], ""),
        ({"storageClassName": ""}, [a_volume("v", volumeMode="Block")], ""),
        ({"storageClassName": ""}, [a_volume("v", claimRef={"name": "other"})], ""),
        (
            {"storageClassName": ""},
            [a_volume("a"), a_volume("v", "90Gi", claimRef={"name": "data"})],
            "v",
        ),
        (
            {"storageClassName": "", "selector": {"matchLabels": {"tier": "db"}}},
            [a_volume("a"), a_volume("v", "90Gi", labels={"tier": "db"})],
            "v",
        ),
        (
            {"storageClassName": "", "volumeName": "v"},
            [a_volume("v", claimRef={"name": "other", "namespace": "default"})],
            "",
        ),
    ],
)
def test_a_claim_gets_the_volume_that_kubernetes_binds_it_to(
    claim: dict[str, Any], volumes: list[Resource], expected: str
) -> None:
    workloads, findings = expand([a_claim(**claim), *volumes, a_user("data")])
    assert bound(workloads) == {"data": expected}
    assert findings == ()


def test_two_claims_do_not_share_a_volume() -> None:
    claims = [a_claim(name, storageClassName="") for name in ("one", "two", "three")]
    workloads, _ = expand([*claims, a_volume("a"), a_volume("b")])
    assert sorted(bound(workloads).values()) == ["", "a", "b"]


def test_a_class_that_binds_immediately_has_provisioned_its_volume() -> None:
    """Immediate is the default mode; allowedTopologies limit where the volume is."""
    terms = [{"matchLabelExpressions": [{"key": ZONE, "values": ["us-east-1b"]}]}]
    workloads, findings = expand(
        [
            a_class("efs-sc", EFS),
            a_class("zonal", EBS, "Immediate", allowedTopologies=terms),
            a_claim("shared", storageClassName="efs-sc"),
            a_claim("tied", storageClassName="zonal"),
        ]
    )
    assert all(bound(workloads).values())
    assert findings == ()
    places = {v.metadata.name: v.spec.node_affinity for v in workloads.volumes}
    assert places["pvc-default-shared"] is None
    tied = places["pvc-default-tied"]
    assert tied is not None
    assert tied.required is not None
    assert tied.required.node_selector_terms[0].match_expressions[0].values == ("us-east-1b",)


def test_an_immediate_class_of_ebs_has_a_note_that_the_zone_is_not_known() -> None:
    workloads, (finding,) = expand([a_class("gp2"), a_claim(storageClassName="gp2")])
    assert bound(workloads) == {"data": "pvc-default-data"}
    assert (finding.code, finding.severity) == ("zone-of-volume-unknown", Severity.INFO)


def test_a_claim_that_waits_for_its_first_pod_stays_unbound() -> None:
    waits = a_class("gp3", EBS, "WaitForFirstConsumer")
    workloads, findings = expand([waits, a_claim(storageClassName="gp3")])
    assert bound(workloads) == {"data": ""}
    assert findings == ()


@pytest.mark.parametrize(
    ("claim", "driver", "words"),
    [
        ({"storageClassName": "gp3"}, EBS, "StorageClass gp3 is not in the folder"),
        ({}, EBS, "The default StorageClass is not in the folder"),
        (
            {"storageClassName": "shared", "accessModes": ["ReadWriteMany"]},
            EFS,
            "every zone reaches",
        ),
    ],
)
def test_a_class_that_only_the_cluster_has_is_assumed(
    claim: dict[str, Any], driver: str, words: str
) -> None:
    claims = [a_claim("one", **claim), a_claim("two", **claim)]
    workloads, (finding,) = expand([*claims, a_user("one", "two")])
    assert (finding.code, finding.severity) == ("assumed-storageclass", Severity.INFO)
    assert words in finding.message
    assert "2 claims" in finding.message
    (assumed,) = workloads.storage_classes
    assert (assumed.provisioner, assumed.volume_binding_mode) == (driver, "WaitForFirstConsumer")
    assert {c.spec.storage_class_name for c in workloads.volume_claims} == {assumed.metadata.name}


def test_volumes_and_claims_that_only_the_cluster_has_are_assumed() -> None:
    claim = a_claim(storageClassName="", volumeName="elsewhere")
    workloads, findings = expand([claim, a_user("data", "not-in-git")])
    assert bound(workloads) == {"data": "elsewhere", "not-in-git": "pvc-default-not-in-git"}
    assert {f.code: f.severity for f in findings} == {
        "assumed-volume": Severity.INFO,
        "assumed-claim": Severity.WARNING,
    }


def test_the_claims_of_a_stateful_set_and_of_ephemeral_volumes_are_bound_too() -> None:
    template = {"metadata": {"name": "data"}, "spec": {"storageClassName": "efs-sc"}}
    ephemeral = {"volumeClaimTemplate": {"spec": {"storageClassName": "efs-sc"}}}
    spec = {
        "replicas": 2,
        "template": a_template(volumes=[{"name": "scratch", "ephemeral": ephemeral}]),
        "volumeClaimTemplates": [template],
    }
    workloads, findings = expand([a("StatefulSet", "db", spec=spec), a_class("efs-sc", EFS)])
    assert findings == ()
    assert sorted(bound(workloads)) == ["data-db-0", "data-db-1", "db-0-scratch", "db-1-scratch"]
    assert all(bound(workloads).values())


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("WaitForFirstConsumer", "assumes that one is created on the new node"),
        ("Immediate", "its pods wait until one is created"),
    ],
)
def test_a_claim_whose_class_provisions_nothing_is_reported(mode: str, words: str) -> None:
    local = a_class("local", "kubernetes.io/no-provisioner", mode)
    claim = a_claim(storageClassName="local")
    workloads, (finding,) = expand([local, claim, a_user("data")])
    assert bound(workloads) == {"data": ""}
    assert (finding.code, finding.severity) == ("no-volume", Severity.WARNING)
    assert "default/data" in finding.message
    assert words in finding.message
    workloads, findings = expand([local, claim, a_volume("v", storageClassName="local")])
    assert (bound(workloads), findings) == ({"data": "v"}, ())


@pytest.mark.parametrize(
    ("provisioner", "driver"),
    [
        ("kubernetes.io/aws-ebs", EBS),
        (EBS, EBS),
        (EFS, EFS),
        ("kubernetes.io/no-provisioner", ""),
    ],
)
def test_a_claim_has_one_driver_before_and_after_its_volume_exists(
    provisioner: str, driver: str
) -> None:
    kind = a_class("kind", provisioner, "Immediate")
    workloads, _ = expand([kind, a_claim(storageClassName="kind")])
    (claim,) = workloads.volume_claims
    volumes = {v.metadata.name: v for v in workloads.volumes}
    classes = {c.metadata.name: c for c in workloads.storage_classes}
    assert csi_driver(claim, volumes, classes) == driver
    unbound = replace(claim, spec=replace(claim.spec, volume_name=""))
    assert csi_driver(unbound, volumes, classes) == driver
