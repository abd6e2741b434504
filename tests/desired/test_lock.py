"""The lock file: written the same each time, refused when it was touched, and where it fits."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest

from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.lock import (
    FactSource,
    Lock,
    LockedCatalog,
    LockedClass,
    LockedType,
    choices_digest,
    encode,
    read_lock,
    selectors_digest,
    with_locked_resources,
)
from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.model.karpenter.nodeclass import (
    AMI,
    EC2NodeClass,
    EC2NodeClassStatus,
    SecurityGroup,
    Subnet,
)
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.metadata import Condition, Metadata, condition
from reconciler.source.resource import LOCK_FILE

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
SCHEMA = Path(__file__).parents[2] / "schemas" / "lock.v1.json"
CLASS = """
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@v2025061VERSION}]
  subnetSelectorTerms: [{tags: {team: web}}]
  securityGroupSelectorTerms: [{tags: {team: web}}]
"""
POOL = """
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: web}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements: [{key: karpenter.k8s.aws/instance-family, operator: In, values: [FAMILY]}]
"""


def files(version: str = "0", family: str = "m7g", lock: bytes | None = None) -> list[SourceFile]:
    found = [
        SourceFile("class.yaml", CLASS.replace("VERSION", version).encode()),
        SourceFile("pool.yaml", POOL.replace("FAMILY", family).encode()),
    ]
    return found if lock is None else [*found, SourceFile(LOCK_FILE, lock)]


def a_lock(**fields: object) -> Lock:
    fleet, _ = read_fleet(files())
    arm = NodeSelectorRequirement("kubernetes.io/arch", Operator.IN, ("arm64",))
    defaults: dict[str, object] = {
        "locked_at": NOON,
        "region": "us-east-1",
        "catalog": LockedCatalog(
            instance_types=FactSource(source="live", at=NOON),
            bundle="2026-07-20",
            bundle_digest="0123456789abcdef",
            on_demand=FactSource(source="bundled", at=NOON),
            spot=FactSource(source="estimate"),
        ),
        "node_pools": {"web": choices_digest(fleet.node_pools[0].data)},
        "node_classes": {
            "default": LockedClass(
                selectors=selectors_digest(fleet.node_classes[0].data),
                amis=(AMI("ami-1", "al2023", requirements=(arm,)),),
                subnets=(Subnet("subnet-1", "us-east-1a"), Subnet("subnet-2", "us-east-1b")),
                security_groups=(SecurityGroup("sg-1", "web"),),
            )
        },
        "types": {
            "m7g.large": LockedType(on_demand=0.0816, spot={"us-east-1a": 0.03}),
            "m7g.xlarge": LockedType(zones=("us-east-1a",), machine=["m7g.xlarge", "arm64", 4]),
        },
    }
    return Lock(**{**defaults, **fields})


def test_a_lock_is_read_back_unchanged_and_written_deterministically() -> None:
    content = encode(a_lock())
    lock = read_lock(content)
    assert isinstance(lock, Lock)
    assert encode(lock) == content
    swapped = dict(reversed(list(a_lock().types.items())))
    assert encode(a_lock(types=swapped)) == content


def test_a_lock_is_valid_under_its_schema() -> None:
    jsonschema.validate(json.loads(encode(a_lock())), json.loads(SCHEMA.read_text("utf-8")))


def test_a_changed_price_changes_one_line_and_the_digest() -> None:
    types = {**a_lock().types, "m7g.large": LockedType(on_demand=0.09, spot={"us-east-1a": 0.03})}
    before, after = (encode(lock).splitlines() for lock in (a_lock(), a_lock(types=types)))
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 2
    assert b"m7g.large" in changed[1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"0.0816", b"0.0001", "edited by hand"),
        (b"ami-1", b"ami-2", "edited by hand"),
        (b'"region"', b'"regiom"', "not a lock file"),
        (b"{\n", b"<<<<<<< ours\n{\n<<<<<<< theirs\n", "merge conflict markers"),
        (b"\n}\n", b"\n", "not JSON"),
        (b"reconciler/v1", b"reconciler/v9", "Lock of reconciler/v9"),
    ],
)
def test_an_edited_lock_is_one_clear_error(old: bytes, new: bytes, message: str) -> None:
    content = encode(a_lock()).replace(old, new, 1)
    _, findings = read_fleet(files(lock=content))
    errors = [f for f in findings if f.severity is Severity.ERROR]
    assert len(errors) == 1
    assert message in errors[0].message
    assert errors[0].place is not None
    assert errors[0].place.file == LOCK_FILE
    assert "reconciler lock --update" in errors[0].hint


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b"{}"])
def test_any_bytes_are_a_lock_or_a_finding(content: bytes) -> None:
    assert isinstance(read_lock(content), Diagnostic)


def test_a_current_lock_is_used_without_a_finding() -> None:
    fleet, findings = read_fleet(files(lock=encode(a_lock())))
    assert findings == ()
    assert fleet.lock is not None
    assert fleet.lock.entry("default") is not None
    assert fleet.lock_for("us-east-1") is fleet.lock
    assert fleet.lock_for("eu-west-1") is None


def test_outdated_entries_of_a_lock_are_reported_once_and_ignored() -> None:
    fleet, findings = read_fleet(files("1", "c7g", lock=encode(a_lock())))
    assert [f.code for f in findings] == ["lock-stale"]
    assert "EC2NodeClass default, NodePool web" in findings[0].message
    assert fleet.lock is not None
    assert fleet.lock.entry("default") is None


def test_without_lookups_the_lock_contains_everything() -> None:
    entry = a_lock().node_classes["default"]
    found = with_locked_resources(EC2NodeClass(Metadata(name="default")), entry).status
    assert (found.amis, found.subnets) == (entry.amis, entry.subnets)
    assert (
        with_locked_resources(EC2NodeClass(Metadata(name="default")), None).status
        == EC2NodeClassStatus()
    )


def resolved_class(*subnets: str) -> EC2NodeClass:
    status = EC2NodeClassStatus(
        amis=(AMI("ami-9"),),
        subnets=tuple(Subnet(name, "us-east-1a") for name in subnets),
        security_groups=(SecurityGroup("sg-1"), SecurityGroup("sg-7")),
        conditions=(
            Condition("AMIsReady", "False", "AMINotFound"),
            Condition("SubnetsReady", "True"),
            Condition("Ready", "False", "UnhealthyDependents", "AMIsReady=False"),
        ),
    )
    return EC2NodeClass(Metadata(name="default"), status=status)


def test_a_newer_image_is_not_used_and_subnets_keep_the_observed_order() -> None:
    found = with_locked_resources(
        resolved_class("subnet-2", "subnet-9", "subnet-1"), a_lock().entry("default")
    )
    assert [a.id for a in found.status.amis] == ["ami-1"]
    assert [s.id for s in found.status.subnets] == ["subnet-2", "subnet-1"]
    assert [g.id for g in found.status.security_groups] == ["sg-1"]
    assert found.is_ready


def test_a_class_without_its_locked_subnets_is_not_ready_with_a_reason() -> None:
    found = with_locked_resources(resolved_class("subnet-9"), a_lock().entry("default"))
    assert not found.is_ready
    reason = condition(found.status.conditions, "SubnetsReady")
    assert reason is not None
    assert "reconciler lock --update" in reason.message
