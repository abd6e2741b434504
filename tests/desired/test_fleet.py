"""Files become a fleet: order does not matter (law 2), objects are distinguished and linked."""

import json
import os
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.assembly.inputs.sources import expect_complete
from reconciler.cli.output.findings import render_json
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.objects import node_classes, node_overlays, node_pools
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.errors import InvalidFleetError
from tests.desired.examples import a_class, a_file, a_pool, a_pool_requiring, an_overlay
from tests.examples import examples

SAMPLE = (Path(__file__).parent / "fleet.yaml").read_bytes()
SCENARIOS = (
    Path(
        os.environ.get("CONFORMANCE_TABLES")
        or Path(__file__).resolve().parents[3] / "shared" / "conformance" / "tables"
    ).parent
    / "scenarios"
)


def found(*files: SourceFile, **options: bool) -> list[tuple[str, str, str]]:
    _, diagnostics = read_fleet(files, **options)
    return [(str(d.severity), d.code, d.path) for d in diagnostics]


def reported(diagnostics: Iterable[Diagnostic]) -> list[tuple[str, str, str]]:
    """Return what findings say, but for the columns in it, which move with the keys."""
    return [(d.code, d.path, re.sub(r":1:[0-9]+", "", d.message)) for d in diagnostics]


def test_a_fleet_of_every_form_is_read_completely() -> None:
    fleet, diagnostics = read_fleet([SourceFile("fleet.yaml", SAMPLE)])

    assert diagnostics == ()
    assert [(r.kind, r.name, r.line) for r in fleet.resources] == [
        ("NodePool", "fixed", 28),
        ("NodePool", "general", 1),
        ("NodeOverlay", "cheap-arm", 38),
        ("EC2NodeClass", "default", 45),
        ("Deployment", "web", 56),
    ]
    assert [r.namespace for r in fleet.workloads] == ["default"]


def test_the_fleet_decodes_into_the_model() -> None:
    fleet, _ = read_fleet([SourceFile("fleet.yaml", SAMPLE)])

    assert [pool.spec.replicas for pool in node_pools(fleet)] == [2, None]
    assert [overlay.metadata.name for overlay in node_overlays(fleet)] == ["cheap-arm"]
    assert [c.spec.role for c in node_classes(fleet)] == ["nodes"]


@settings(max_examples=examples(60), deadline=None, derandomize=True, database=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_the_order_of_files_and_keys_does_not_matter(shuffle: random.Random, spoil: bool) -> None:
    objects = [a_pool(f"p{i}", weight=i + 1) for i in range(4)]
    objects += [a_class(), an_overlay("a"), an_overlay("b", price="1"), a_pool("p1")]
    if spoil:
        objects[0]["spec"]["wieght"] = 5

    def written(order: list[int], keys: bool) -> list[SourceFile]:
        def mixed(data: Any) -> Any:
            if not isinstance(data, dict):
                return data
            names = list(data)
            if keys:
                shuffle.shuffle(names)
            return {name: mixed(data[name]) for name in names}

        return [a_file(mixed(objects[i]), path=f"{i}.json") for i in order]

    order = list(range(len(objects)))
    straight = read_fleet(written(order, keys=False))
    shuffle.shuffle(order)
    mixed = read_fleet(written(order, keys=True))

    assert [r.data for r in straight[0].resources] == [r.data for r in mixed[0].resources]
    assert reported(straight[1]) == reported(mixed[1])
    assert render_json(straight[1]) == render_json(
        read_fleet(reversed(written(list(range(8)), False)))[1]
    )


def test_an_empty_fleet_is_an_error_unless_it_may_be_empty() -> None:
    assert found() == [("error", "empty-fleet", "")]
    assert found(a_file(a_class())) == [("error", "empty-fleet", "")]
    assert found(a_file(a_class()), allow_empty=True) == [("warning", "empty-fleet", "")]


NO_OBJECTS = [
    pytest.param(b"replicas: 2\n", id="values of a chart"),
    pytest.param(b"apiVersion: 1\nproviders: []\n", id="a file of Grafana"),
    pytest.param(b"- hosts: all\n  tasks: []\n", id="a playbook of Ansible"),
    pytest.param(b"[]\n", id="an empty list"),
    pytest.param(b'{"strict": true /* yes */}', id="JSON with comments"),
    pytest.param(
        b"Resources:\n  Role:\n    Name: !Sub '${Cluster}-nodes'\n    Arn: !GetAtt Role.Arn\n",
        id="a template of CloudFormation",
    ),
    pytest.param(b"port: !!string 80\nname: {{ name }}\n", id="values that are a template"),
]


@pytest.mark.parametrize("content", NO_OBJECTS)
def test_a_file_without_any_object_hides_no_other_finding(content: bytes) -> None:
    other = SourceFile("other.json" if content.startswith((b"{", b"[")) else "other.yaml", content)

    assert found(a_file(a_pool(), a_class()), other) == [("warning", "no-object", "")]
    assert found(a_file(a_class()), other) == [
        ("error", "empty-fleet", ""),
        ("warning", "no-object", ""),
    ]


def test_many_files_without_an_object_are_one_finding() -> None:
    fleet = a_file(a_pool(), a_class())
    others = [SourceFile(f"{name}/package.json", b'{"name": "a"}') for name in "abcde"]
    _, diagnostics = read_fleet([fleet, *others[:3]])
    assert [d.place.file for d in diagnostics if d.place] == [o.path for o in others[:3]]
    _, (one,) = read_fleet([fleet, *others])
    assert (one.code, str(one.place)) == ("no-object", "a/package.json:1:1")
    assert "5 files are not Kubernetes objects, and are not read: a/package.json, " in one.message
    assert one.message.endswith(" and 2 more")


def test_the_index_of_a_repository_of_charts_is_no_object() -> None:
    index = SourceFile("index.yaml", b"apiVersion: v1\nentries: {}\ngenerated: now\n")
    assert found(a_file(a_pool(), a_class()), index) == [("warning", "no-object", "")]
    lacking = SourceFile("a.yaml", b"apiVersion: v1\nmetadata: {name: a}\n")
    assert found(a_file(a_pool(), a_class()), lacking) == [("error", "missing-kind", "kind")]


def test_a_syntax_error_is_not_also_an_empty_fleet() -> None:
    assert found(SourceFile("a.yaml", b"a: [")) == [("error", "syntax", "")]
    assert found(SourceFile("a.json", b'{"apiVersion": ')) == [("error", "syntax", "")]


@pytest.mark.parametrize("name", ["kustomization.yaml", "reconciler.yaml"])
def test_a_file_that_configures_needs_no_version_to_count(name: str) -> None:
    file = SourceFile(name, b"sources: !new {{ sources }}\n")
    assert ("error", "unsupported-tag", "") in found(file, a_file(a_pool(), a_class()))


def test_other_kinds_are_skipped_and_counted_in_one_finding() -> None:
    other = [{"apiVersion": "v1", "kind": kind} for kind in ("Service", "ConfigMap", "Service")]
    _, diagnostics = read_fleet([a_file(a_pool(), a_class(), *other)])

    assert [(d.severity, d.message) for d in diagnostics] == [
        (Severity.INFO, "3 objects of other kinds skipped: ConfigMap (1), Service (2)")
    ]


def test_a_kustomization_needs_no_kind() -> None:
    kustomization = SourceFile("base/kustomization.yaml", b"resources: [pool.yaml]\n")

    assert found(a_file(a_pool(), a_class()), kustomization) == [("info", "skipped-kinds", "")]


@pytest.mark.parametrize("kind", ["TestNodeClass", "KWOKNodeClass"])
def test_node_classes_of_other_providers_are_ignored_silently(kind: str) -> None:
    other = {"apiVersion": "karpenter.test.sh/v1alpha1", "kind": kind, "metadata": {"name": "x"}}
    ref = {"group": "karpenter.test.sh", "kind": kind, "name": "x"}

    assert found(a_file(a_pool_requiring(nodeClassRef=ref), other)) == []


def test_a_missing_class_is_an_error_only_in_a_folder_that_is_complete() -> None:
    path = "spec.template.spec.nodeClassRef.name"

    assert found(a_file(a_pool())) == [("warning", "missing-nodeclass", path)]
    assert found(a_file(a_pool()), is_complete=True) == [("error", "missing-nodeclass", path)]
    assert found(a_file(a_pool()), any_class=True) == []


def test_both_positions_of_a_duplicate_name_are_reported() -> None:
    _, (diagnostic,) = read_fleet(
        [a_file(a_pool(), path="b.json"), a_file(a_pool(), a_class(), path="a.json")]
    )

    assert diagnostic.code == "duplicate-name"
    assert diagnostic.place is not None
    assert diagnostic.place.file == "b.json"
    assert "a.json:1:76" in diagnostic.message
    assert diagnostic.hint == "rename or remove one"


def test_objects_of_two_folders_may_be_two_ways_to_deploy_one() -> None:
    _, (diagnostic,) = read_fleet(
        [a_file(a_pool(), path="k8s/b.json"), a_file(a_pool(), a_class(), path="chart/a.json")]
    )
    assert "list only one folder under sources in reconciler.yaml" in diagnostic.hint


def test_of_workloads_of_one_name_in_several_folders_the_first_is_planned() -> None:
    """Folders for several clusters are common, and no fault of a repository."""
    quick, slow = (
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
         "spec": {"containers": [{"name": name, "image": "web"}]}}
        for name in ("quick", "slow")
    )  # fmt: skip
    nodes = a_file(a_pool(), a_class(), path="nodes.json")
    files = [a_file(quick, path="prod/web.json"), a_file(slow, path="dev/web.json")]
    fleet, (diagnostic,) = read_fleet([nodes, *files])

    assert (diagnostic.severity, diagnostic.code) == (Severity.WARNING, "duplicate-workload")
    assert str(diagnostic.place).startswith("prod/web.json:1:")
    assert [r.data["spec"]["containers"][0]["name"] for r in fleet.workloads] == ["slow"]
    with pytest.raises(InvalidFleetError, match="only that one is planned"):
        expect_complete([diagnostic])
    _, (same,) = read_fleet([nodes, a_file(quick, slow, path="web.json")])
    assert (same.severity, same.code) == (Severity.ERROR, "duplicate-name")


def test_of_a_namespace_that_is_written_twice_the_first_counts() -> None:
    made = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "web", "labels": labels}}
            for labels in ({"team": "a"}, {"team": "b"})]  # fmt: skip
    fleet, (diagnostic,) = read_fleet([a_file(a_pool(), a_class(), *made)])

    assert (diagnostic.severity, diagnostic.code) == (Severity.WARNING, "duplicate-name")
    assert [r.data["metadata"]["labels"] for r in fleet.resources if r.kind == "Namespace"] == [
        {"team": "a"}
    ]


def test_a_list_of_objects_without_a_list_kind_is_an_error() -> None:
    assert found(SourceFile("a.yaml", b"- kind: NodePool\n")) == [("error", "not-an-object", "")]


def test_an_invalid_object_in_a_list_has_its_position_in_the_list() -> None:
    broken = a_pool(wieght=1)
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [a_class(), broken]}, indent=2)

    _, (diagnostic,) = read_fleet([SourceFile("l.json", text.encode())])

    line = text.splitlines()[diagnostic.place.line - 1]  # type: ignore[union-attr]
    assert line.strip().startswith('"wieght"')
    assert diagnostic.path == "spec.wieght"


def test_nulls_count_as_absent_as_in_the_api_server() -> None:
    pool = a_pool(limits=None, weight=None)
    pool["metadata"]["creationTimestamp"] = None

    fleet, diagnostics = read_fleet([a_file(pool, a_class())])

    assert diagnostics == ()
    assert set(fleet.node_pools[0].data["spec"]) == {"template", "disruption"}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"foo": None}, "spec.foo"),
        ({"disruption": {"consolidateAfter": "0s", "until": None}}, "spec.disruption.until"),
        (
            {"disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "1", "why": None}]}},
            "spec.disruption.budgets[0].why",
        ),
    ],
)
def test_a_null_under_an_unknown_key_is_an_unknown_field(spec: dict[str, Any], path: str) -> None:
    assert found(a_file(a_pool(**spec), a_class())) == [("error", "unknown-field", path)]


@pytest.mark.parametrize("added", ["yesterday", "2026-01-01", "2026-13-01T00:00:00Z", ""])
def test_the_time_of_a_taint_is_a_time(added: str) -> None:
    taint = {"key": "a", "effect": "NoSchedule", "timeAdded": added}
    path = "spec.template.spec.taints[0].timeAdded"

    assert found(a_file(a_pool_requiring(taints=[taint]), a_class())) == [
        ("error", "bad-format", path)
    ]


@pytest.mark.parametrize("added", ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5+01:00"])
def test_a_time_of_a_taint_may_have_an_offset(added: str) -> None:
    taint = {"key": "a", "effect": "NoSchedule", "timeAdded": added}

    assert found(a_file(a_pool_requiring(taints=[taint]), a_class())) == []


def test_a_null_for_consolidate_after_is_reported_with_its_meaning() -> None:
    pool = a_pool(disruption={"consolidateAfter": None})

    assert found(a_file(pool, a_class())) == [
        ("warning", "old-spelling", "spec.disruption.consolidateAfter")
    ]


def test_the_reconciler_config_is_not_a_kubernetes_object() -> None:
    config = SourceFile("reconciler.yaml", b"fleet: web\npacking: cheapest\n")

    fleet, diagnostics = read_fleet([config, a_file(a_pool(), a_class())])

    assert diagnostics == ()
    assert fleet.config == {"fleet": "web", "packing": "cheapest"}


def test_an_invalid_config_is_reported_with_its_position() -> None:
    config = SourceFile("reconciler.yaml", b"packing: cheap\nfeatureGate: {}\n")

    assert found(config, a_file(a_pool(), a_class())) == [
        ("error", "not-allowed", "packing"),
        ("error", "unknown-field", "featureGate"),
    ]


@pytest.mark.parametrize(
    ("workload", "path"),
    [
        ({"kind": "Deployment", "apiVersion": "apps/v1", "metadata": {}}, "metadata.name"),
        ({"kind": "Job", "apiVersion": "batch/v1", "metadata": {"name": "a"}}, "spec"),
        (
            {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}, "spec": {}},
            "spec.containers",
        ),
        (
            {
                "kind": "DaemonSet",
                "apiVersion": "apps/v1",
                "metadata": {"name": "a"},
                "spec": {"template": {"spec": []}},
            },
            "spec.template.spec",
        ),
        ({"kind": "Deployment", "apiVersion": "extensions/v1beta1"}, "apiVersion"),
    ],
)
def test_a_workload_must_have_the_shape_that_its_pods_are_made_from(
    workload: Any, path: str
) -> None:
    errors = [f for f in found(a_file(a_pool(), a_class(), workload)) if f[0] == "error"]

    assert path in [f[2] for f in errors]


def scenario_files() -> list[str]:
    return sorted(map(str, SCENARIOS.rglob("*.json")))


@pytest.mark.exhaustive
@pytest.mark.skipif(not SCENARIOS.is_dir(), reason="the conformance scenarios are not here")
def test_every_scenario_fleet_has_the_expected_findings() -> None:
    kinds = {"NodePool", "NodeOverlay", "EC2NodeClass", "TestNodeClass", "KWOKNodeClass"}
    judged = 0
    for path in scenario_files():
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        for scenario in data if isinstance(data, list) else [data]:
            objects = [o for o in scenario["objects"] if o["kind"] in kinds]
            files = [a_file(o, path=f"{i:03}.yaml") for i, o in enumerate(objects)]
            _, diagnostics = read_fleet(files, any_class=True, allow_empty=True)
            errors = [str(d) for d in diagnostics if d.severity is Severity.ERROR]
            expect = scenario.get("expect") or {}
            assert bool(errors) == (expect.get("valid") is False), (path, errors)
            assert expect.get("path", "") in " ".join(errors)
            judged += 1
    assert judged > 1000


def test_an_unread_file_is_one_finding_and_not_an_empty_fleet() -> None:
    refused = Diagnostic(Severity.ERROR, "outside-link", "leads out", Place("a.yaml", 1, 1))
    _, findings = read_fleet([], unread=[refused])
    assert findings == (refused,)
