from typing import Any

import pytest

from reconciler.diff.changes import (
    field_changes,
    format_path,
    narrows_requirements,
    object_changes,
)
from reconciler.model.decision.changes import FieldChange
from reconciler.plan.make.disclosure import disclosed_fields


def _pool(name: str = "web", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": spec,
    }


def _template(**spec: Any) -> dict[str, Any]:
    return {"template": {"spec": spec}}


def _only(before: dict[str, Any], after: dict[str, Any]) -> dict[str, bool]:
    (change,) = object_changes([before], [after])
    assert change.op == "update"
    return {field.path: field.drifts for field in change.fields}


def test_added_and_removed_objects_are_changes() -> None:
    base, head = [_pool("a"), _pool("b")], [_pool("b"), _pool("c")]

    found = object_changes(base, head)

    assert [(c.op, c.name) for c in found] == [("delete", "a"), ("create", "c")]


def test_equal_objects_do_not_change() -> None:
    assert object_changes([_pool(weight=1)], [_pool(weight=1)]) == ()


@pytest.mark.parametrize(
    "part",
    [
        {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        {"startupTaints": [{"key": "k", "effect": "NoSchedule"}]},
        {"expireAfter": "24h"},
        {"terminationGracePeriod": "5m"},
    ],
)
def test_a_static_field_of_the_template_drifts(part: dict[str, Any]) -> None:
    paths = _only(_pool(**_template()), _pool(**_template(**part)))

    (name,) = part
    assert paths == {f"spec.template.spec.{name}": True}


def test_labels_and_annotations_of_the_template_drift() -> None:
    after = _pool(template={"metadata": {"labels": {"team": "web"}}, "spec": {}})

    assert _only(_pool(**_template()), after) == {"spec.template.metadata.labels.team": True}


@pytest.mark.parametrize(
    "spec",
    [
        {"weight": 5},
        {"limits": {"cpu": "100"}},
        {"disruption": {"consolidateAfter": "5m"}},
        {"replicas": 3},
    ],
)
def test_behaviour_does_not_drift(spec: dict[str, Any]) -> None:
    assert set(_only(_pool(), _pool(**spec)).values()) == {False}


def test_the_order_of_taints_does_not_drift() -> None:
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]

    paths = _only(_pool(**_template(taints=taints)), _pool(**_template(taints=taints[::-1])))

    assert paths == {"spec.template.spec.taints": False}


def test_writing_a_default_out_does_not_drift() -> None:
    paths = _only(_pool(**_template()), _pool(**_template(expireAfter="720h")))

    assert paths == {"spec.template.spec.expireAfter": False}


def _requirement(operator: str, *values: str, key: str = "k") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("old", "new", "drifts"),
    [
        ([_requirement("In", "a")], [_requirement("In", "a", "b")], False),
        ([_requirement("In", "a", "b")], [_requirement("In", "a")], True),
        ([], [_requirement("In", "a")], True),
        ([_requirement("In", "a")], [], False),
        ([_requirement("In", "a")], [_requirement("Exists")], False),
        ([_requirement("Exists")], [_requirement("In", "a")], True),
        ([_requirement("In", "5")], [_requirement("Gt", "4")], False),
        ([_requirement("Gt", "4")], [_requirement("Gt", "3")], False),
        ([_requirement("Gt", "4")], [_requirement("Gt", "5")], True),
        ([_requirement("NotIn", "a")], [_requirement("NotIn", "a", "b")], True),
        ([_requirement("NotIn", "a", "b")], [_requirement("NotIn", "a")], False),
    ],
)
def test_requirements_drift_only_if_a_node_violates_them(
    old: list[Any], new: list[Any], drifts: bool
) -> None:
    assert narrows_requirements(old, new) is drifts
    paths = _only(_pool(**_template(requirements=old)), _pool(**_template(requirements=new)))
    assert paths == {"spec.template.spec.requirements": drifts}


def _class(**spec: Any) -> dict[str, Any]:
    return {"kind": "EC2NodeClass", "metadata": {"name": "default"}, "spec": spec}


@pytest.mark.parametrize(
    ("part", "drifts"),
    [
        ({"userData": "#!/bin/sh"}, True),
        ({"tags": {"team": "web"}}, True),
        ({"kubelet": {"maxPods": 20}}, True),
        ({"subnetSelectorTerms": [{"id": "subnet-1"}]}, False),
        ({"amiSelectorTerms": [{"id": "ami-1"}]}, False),
    ],
)
def test_changes_of_class_fields_drift_and_changes_of_selectors_do_not(
    part: dict[str, Any], drifts: bool
) -> None:
    assert set(_only(_class(), _class(**part)).values()) == {drifts}


def test_status_and_metadata_bookkeeping_are_not_changes() -> None:
    live = {**_pool(), "status": {"resources": {}}}
    live["metadata"] = {"name": "web", "uid": "1", "resourceVersion": "7"}

    assert object_changes([live], [_pool()]) == ()


def test_a_change_contains_its_file() -> None:
    (change,) = object_changes([], [_pool()], place=lambda _: ("pools/web.yaml", 3))

    assert (change.file, change.line) == ("pools/web.yaml", 3)


def test_keys_with_dots_are_written_in_brackets() -> None:
    assert format_path(("spec", "tags", "a.b/c", "d")) == 'spec.tags["a.b/c"].d'


def a_workload(*containers: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"template": {"spec": {"containers": list(containers)}}},
    }


def paths_of(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [field.path for field in field_changes(before, after)]


def test_a_change_of_a_container_names_the_container_and_the_field() -> None:
    log = {"name": "log", "image": "log:1"}
    before, after = (
        a_workload({"name": "web", "resources": {"requests": {"cpu": cpu}}}, log)
        for cpu in ("500m", "625m")
    )
    assert field_changes(before, after) == (
        FieldChange("spec.template.spec.containers.web.resources.requests.cpu", "500m", "625m"),
    )


@pytest.mark.parametrize("name", ["env", "command", 'a"].command', "a.b", "", None])
def test_containers_without_a_plain_name_are_compared_as_a_list(name: str | None) -> None:
    before, after = (a_workload({"name": name, "image": image}) for image in ("a", "b"))
    assert paths_of(before, after) == ["spec.template.spec.containers"]


def test_another_order_of_containers_is_a_change() -> None:
    one, two = {"name": "a", "image": "a"}, {"name": "b", "image": "b"}
    assert paths_of(a_workload(one, two), a_workload(two, one)) == ["spec.template.spec.containers"]


def test_no_field_below_a_hidden_one_of_a_container_is_disclosed() -> None:
    before, after = (
        a_workload(
            {
                "name": "web",
                "command": [secret],
                "env": [{"name": "PASSWORD", "value": secret}],
                "livenessProbe": {"httpGet": {"path": secret, "httpHeaders": [secret]}},
            }
        )
        for secret in ("old-secret", "new-secret")
    )
    fields = disclosed_fields(field_changes(before, after))
    assert len(fields) == 4
    assert "secret" not in repr(fields)
