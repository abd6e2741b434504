"""Changes of desired state: what they make of the files, and which are alternatives."""

from __future__ import annotations

import pytest

from reconciler.advise.changes import (
    AddRequirement,
    AllowValues,
    CopyPool,
    DesiredChange,
    Files,
    SetPoolField,
    SetSetting,
    with_changes,
)
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.objects import node_pools
from reconciler.source.rewrite import RewriteError
from tests.cli.advisedfleet import POOL

VCPUS = "karpenter.k8s.aws/instance-cpu"
FAMILY = "karpenter.k8s.aws/instance-family"


def files(path: str = "pools/web.yaml") -> Files:
    return (SourceFile(path, POOL.encode()),)


@pytest.mark.parametrize(
    ("one", "other", "are_alternatives"),
    [
        (
            AddRequirement("web", VCPUS, "Gt", ("3",)),
            AddRequirement("web", VCPUS, "Gt", ("7",)),
            True,
        ),
        (
            AddRequirement("web", VCPUS, "Gt", ("3",)),
            AddRequirement("web", VCPUS, "Lt", ("7",)),
            False,
        ),
        (AllowValues("web", FAMILY, ("m7a",)), AllowValues("web", FAMILY, ("m6i",)), False),
        (
            SetPoolField("web", ("spec", "weight"), 1),
            SetPoolField("web", ("spec", "weight"), 2),
            True,
        ),
        (
            SetPoolField("web", ("spec", "weight"), 1),
            SetPoolField("b", ("spec", "weight"), 1),
            False,
        ),
        (SetSetting("packing", "cheapest"), SetSetting("packing", "default"), True),
        (CopyPool("web", "web-2", "spot", 4, 1), CopyPool("web", "web-2", "spot", 8, 1), True),
    ],
)
def test_changes_of_one_thing_are_alternatives(
    one: DesiredChange, other: DesiredChange, are_alternatives: bool
) -> None:
    assert (one.target == other.target) is are_alternatives


def test_a_copy_differs_by_what_it_is_for_alone() -> None:
    made = with_changes(files(), [CopyPool("web", "web-on-spot", "spot", 12, 3)])
    assert [file.path for file in made] == ["pools/web.yaml", "pools/web-on-spot.yaml"]
    assert made[0] == files()[0]
    fleet, _ = read_fleet(made, any_class=True)
    copy, web = sorted(node_pools(fleet), key=lambda pool: -(pool.spec.weight or 0))
    assert (copy.name, copy.spec.weight, copy.spec.limits) == ("web-on-spot", 3, {"cpu": "12"})
    rows = {row.key: row.values for row in copy.spec.template.spec.requirements}
    assert rows == {FAMILY: ("m7i",), "karpenter.sh/capacity-type": ("spot",)}
    assert copy.spec.disruption == web.spec.disruption


def test_a_copy_replaces_no_file() -> None:
    present = (*files(), SourceFile("pools/web-2.yaml", b""))
    with pytest.raises(RewriteError, match=r"pools/web-2\.yaml exists"):
        with_changes(present, [CopyPool("web", "web-2", "spot", 12, 3)])
