"""Applications of Argo CD: the values in files of another source, and patterns for files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.desired.sources.gitops.patterns import is_kept
from reconciler.source.plainyaml import load_all
from tests.cli.sourcefolders import CHART, CLASS, POOL, WEB, below, write
from tests.cli.test_sources import findings, init, needs_helm, plan, pods, stated, taken, work

__all__ = ["work"]

REPOSITORY = "https://example.com/fleet"
VALUES = """\
settings:
  clusterName: {cluster}
  featureGates: {{nodeRepair: true}}
"""
SOURCES = """\
sources:
  - repoURL: {address}
    chart: {chart}
    targetRevision: 1.14.2
    helm:
      valueFiles: ['$values/values/common.yaml', '$values/values/{cluster}.yaml']
      {more}
  - {{repoURL: 'https://example.com/fleet', ref: values}}
"""


def application(sources: str) -> str:
    spec = sources.replace("\n", "\n  ")
    return (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: karpenter}\n"
        f"spec:\n  {spec}"
    )


def application_set(sources: str, *clusters: str) -> str:
    spec = sources.replace("\n", "\n      ")
    elements = json.dumps([{"cluster": one} for one in clusters])
    return (
        "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: karpenter}\n"
        f"spec:\n  generators: [{{list: {{elements: {elements}}}}}]\n"
        "  template:\n    metadata: {name: 'karpenter-{{cluster}}'}\n"
        f"    spec:\n      {spec}"
    )


def of_karpenter(cluster: str, more: str = "") -> str:
    address = "public.ecr.aws/karpenter"
    return SOURCES.format(address=address, chart="karpenter", cluster=cluster, more=more)


@pytest.mark.parametrize("kind", ["Application", "ApplicationSet"])
def test_settings_of_karpenter_in_values_files_of_another_source_are_taken_over(
    kind: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = application(of_karpenter("blue"))
    if kind == "ApplicationSet":
        text = application_set(of_karpenter("{{cluster}}"), "blue")
    write(work, {
        "apps/karpenter.yaml": text,
        "values/common.yaml": VALUES.format(cluster="other"),
        "values/blue.yaml": "settings: {clusterName: blue}\n",
        "nodes/all.yaml": f"{POOL}---\n{CLASS}",
    })  # fmt: skip
    kinds = [f["message"] for f in findings(".", capsys) if f["code"] == "skipped-kinds"]
    assert kinds == [f"1 object of other kinds skipped: {kind} (1)"]
    assert main(["init", "fleet", "--from", ".", "--no-lock", "--ci", "none"]) == 0
    config = stated()
    assert (config["clusterName"], config["karpenter"]) == ("blue", "1.14")
    assert config["featureGates"] == {"NodeRepair": True}
    assert "values/blue.yaml:1:1: Application karpenter" in capsys.readouterr().out


def test_values_of_an_application_set_for_several_clusters_are_left_to_the_user(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = of_karpenter("{{cluster}}", more="valuesObject: {settings: {reservedENIs: 1}}")
    write(work, {
        "apps/karpenter.yaml": application_set(sources, "blue", "green"),
        "values/blue.yaml": VALUES.format(cluster="blue"),
        "values/green.yaml": VALUES.format(cluster="green"),
        "nodes/all.yaml": f"{POOL}---\n{CLASS}",
    })  # fmt: skip
    assert init(".", "--ci", "none") == 0
    assert "setting clusterName has several values: blue, green" in capsys.readouterr().out
    assert stated()["reservedEnis"] == 1


def test_objects_in_values_files_of_another_source_are_read_at_their_place(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool, node_class = (next(iter(load_all(text.encode()))) for text in (POOL, CLASS))
    sources = SOURCES.format(address="https://x", chart="raw", cluster="blue", more="")
    early = {"objects": [pool, pool], "classes": [node_class]}
    late = json.dumps({"objects": [{**pool, "metadata": {"name": "late"}}]}).replace(
        "[", "\n  [", 1
    )
    write(work, {
        "app.yaml": application(sources),
        "values/common.yaml": json.dumps(early),
        "values/blue.yaml": late.replace("on-demand", "on-demandd"),
        "web.yaml": WEB,
    })  # fmt: skip
    found = [f for f in findings(".", capsys) if "on-demandd" in f["message"]]
    assert {(f["file"], f["line"]) for f in found} == {("values/blue.yaml", 2)}
    write(work, {"values/blue.yaml": late})
    assert pods(plan(".", capsys)) == 1
    assert init(".", "--ci", "none") == 0
    assert {"NodePool late", "EC2NodeClass default"} <= taken().keys()
    assert "NodePool general" not in taken(), "a later file replaces the list"


def test_objects_in_values_of_an_application_that_two_folders_have_are_read_once(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = json.dumps(next(iter(load_all(POOL.encode()))))
    source = (
        f"source: {{repoURL: 'https://x', chart: raw, helm: {{valuesObject: {{a: {pool}}}}}}}\n"
    )
    parent = "source: {repoURL: x, path: apps}\n"
    write(work, {
        "apps/nodes.yaml": application(source),
        "parent.yaml": application(parent).replace("{name: karpenter}", "{name: parent}"),
        "class.yaml": CLASS,
    })  # fmt: skip
    assert "duplicate-name" not in [f["code"] for f in findings(".", capsys)]
    assert init(".", "--ci", "none") == 0
    assert "NodePool general" in taken()


@needs_helm
@pytest.mark.parametrize(("ignores", "is_error"), [("true", False), ("false", True)])
def test_missing_values_files_may_be_ignored(
    ignores: str, is_error: bool, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = (
        "source:\n  repoURL: x\n  path: chart\n"
        f"  helm: {{valueFiles: [gone.yaml], ignoreMissingValueFiles: {ignores}}}\n"
    )
    write(work, below("chart", CHART) | {"app.yaml": application(source)})
    assert ("missing-source" in [f["code"] for f in findings(".", capsys)]) == is_error


def test_patterns_choose_the_files_of_a_folder(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "source: {repoURL: x, path: all, directory: {recurse: true, exclude: '*/*.yaml'}}\n"
    inner = "source: {repoURL: x, path: all/nodes, directory: {include: '{pool,class}.yaml'}}\n"
    write(work, {
        "app.yaml": application(source),
        "all/inner.yaml": application(inner).replace("{name: karpenter}", "{name: inner}"),
        "all/nodes/pool.yaml": POOL,
        "all/nodes/class.yaml": CLASS,
        "all/nodes/other.yaml": POOL.replace("general", "other"),
    })  # fmt: skip
    assert [f for f in findings(".", capsys) if f["severity"] == "error"] == []
    assert init(".", "--ci", "none") == 0
    assert taken().keys() == {"NodePool general", "EC2NodeClass default"}


def test_files_that_an_application_does_not_include_are_read_if_their_folder_has_none_of_it(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is often that of another repository, whose top folder is also called ``.``."""
    directory = "directory: {recurse: true, include: '{buckets/*/bucket,apps/web}.yaml'}"
    write(work, {"app.yaml": application(f"source: {{repoURL: x, path: ., {directory}}}\n")})
    write(work, {"nodes/all.yaml": f"{POOL}---\n{CLASS}", "apps/web.yaml": WEB})
    write(work, {"apps/other.yaml": WEB.replace("name: web,", "name: other,")})
    assert pods(plan(".", capsys)) == 1


@pytest.mark.parametrize(
    ("path", "include", "exclude", "expected"),
    [
        ("a.yaml", "", "", True),
        ("a/b.yaml", "*.yaml", "", True),
        ("a/b.yaml", "{a,b}/*.yaml", "", True),
        ("c/b.yaml", "{a,b}/*.yaml", "", False),
        ("a.json", "*.{yaml,yml}", "", False),
        ("a.yaml", "", "a.yaml", False),
        ("a.yaml", "*", "{a,b}.yaml", False),
        ("x1.yaml", "x{1,{2,3}}.yaml", "", True),
        ("x3.yaml", "x{1,{2,3}}.yaml", "", True),
        ("a.yaml", "{" * 500 + "a,b}" * 500, "", False),
    ],
)
def test_a_pattern_is_that_of_argo_cd(
    path: str, include: str, exclude: str, expected: bool
) -> None:
    assert is_kept(path, include, exclude) == expected
