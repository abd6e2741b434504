"""Files and objects with errors: beside the nodes they are a warning, and never silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.assembly.inputs.request import FleetRequest
from reconciler.assembly.inputs.sources import expect_complete, read_desired, read_source
from reconciler.cli.main import main
from reconciler.model.errors import InvalidFleetError
from tests.cli.sourcefolders import CLASS, POOL, WEB, write
from tests.cli.test_sources import findings, plan, pods, work
from tests.cli.test_unread_sources import commit

__all__ = ["work"]

NODES = {"nodes.yaml": f"{POOL}---\n{CLASS}", "apps/web.yaml": WEB}
OTHER = WEB.replace("name: web,", "name: other,")
CONFLICT = OTHER.replace(
    "  replicas: 1\n", "<<<<<<< ours\n  replicas: 1\n=======\n>>>>>>> theirs\n"
)
COMPARE = ["plan", ".", "--base", "HEAD", "--set", "cluster=none"]

BROKEN = {
    "a merge conflict": (
        CONFLICT,
        "the file is not read, so the pods of its Deployment are not planned: unresolved merge",
    ),
    "no YAML": ("a: b: c\n", "the file is not read: not YAML"),
    "an older API": (
        OTHER.replace("apps/v1", "extensions/v1beta1"),
        "Deployment other is not read, so its pods are not planned: apiVersion: unsupported",
    ),
    "a patch": (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: other}\nspec: {replicas: 2}\n",
        "Deployment other is not read, so its pods are not planned: spec",
    ),
    "no kind": ("metadata: {name: other}\nspec: {}\n", "a document is not read: apiVersion: "),
}


@pytest.mark.parametrize(("content", "says"), BROKEN.values(), ids=BROKEN)
def test_an_error_that_no_node_depends_on_leaves_out_the_file_or_the_object(
    content: str, says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES | {"apps/other.yaml": content})
    assert "error" in {f["severity"] for f in findings(".", capsys)}
    made = plan(".", capsys)
    assert pods(made) == 1
    (found,) = [d for d in made["diagnostics"] if d["code"] == "unread-object"]
    assert found["severity"] == "warning"
    assert found["message"].startswith(says)
    assert found["file"] == "apps/other.yaml"
    _, left = read_desired(read_source(FleetRequest(path=".")), any_class=False)
    with pytest.raises(InvalidFleetError, match="not read"):
        expect_complete(left)


@pytest.mark.parametrize(
    "content",
    [
        OTHER.encode("utf-16"),
        b"# \xe9\n" + OTHER.encode(),
        b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 1\n",
    ],
    ids=["UTF-16", "Latin-1", "a pointer of Git LFS"],
)
def test_a_file_with_unknown_content_may_have_nodes(
    content: bytes, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES)
    (work / "apps/other.yaml").write_bytes(content)
    assert main(["plan", "."]) == 1
    assert "apps/other.yaml:1:" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "says"), BROKEN.values(), ids=BROKEN)
def test_an_error_in_a_folder_that_is_declared_as_a_fleet_stops_its_plan(
    content: str, says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES | {"apps/other.yaml": content, "reconciler.yaml": "fleet: web\n"})
    assert main(["plan", "."]) == 1
    assert "apps/other.yaml:" in capsys.readouterr().err


@pytest.mark.parametrize(
    "content",
    [
        POOL.replace("general", "other").replace("spec:\n", "spec: [\n", 1),
        POOL.replace("general", "other").replace("karpenter.sh/v1", "karpenter.sh/v1beta1"),
        POOL.replace("general", "other").replace("kind: NodePool\n", ""),
        POOL,
        "apiVersion: v1\nkind: List\nitems: {kind: NodePool, apiVersion: karpenter.sh/v1}\n",
        "apiVersion: karpenter.sh/v1\nkind: NodePol\nmetadata: {name: other}\n",
    ],
)
def test_an_error_in_an_object_of_karpenter_stays_one(
    content: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES | {"other.yaml": content})
    assert main(["plan", "."]) == 1
    assert "other.yaml:" in capsys.readouterr().err


def test_of_duplicates_in_one_folder_the_first_is_planned(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES | {"apps/web2.yaml": WEB.replace("replicas: 1", "replicas: 9")})
    assert "duplicate-name" in {f["code"] for f in findings(".", capsys)}
    made = plan(".", capsys)
    assert pods(made) == 1
    (found,) = [d for d in made["diagnostics"] if d["code"] == "duplicate-workload"]
    assert (found["severity"], found["file"]) == ("warning", "apps/web2.yaml")


def test_an_object_that_is_left_out_does_not_take_the_name_of_another(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A patch is often before the object that it changes."""
    patch = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\n"
    write(work, NODES | {"apps/patch.yaml": f"{patch}spec: {{replicas: 2}}\n"})
    made = plan(".", capsys)
    assert pods(made) == 1
    assert "duplicate-workload" not in {d["code"] for d in made["diagnostics"]}


def test_the_other_objects_of_a_file_with_an_error_are_read(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"nodes.yaml": NODES["nodes.yaml"]})
    broken = OTHER.replace("  replicas: 1\n", "  replicas: 1\n  replicas: 5\n")
    write(
        work, {"apps/all.yaml": f"{WEB}---\n{broken}---\n{WEB.replace('name: web,', 'name: z,')}"}
    )
    made = plan(".", capsys)
    assert pods(made) == 2
    (found,) = [d for d in made["diagnostics"] if d["code"] == "unread-object"]
    assert found["message"].startswith("the file is read only in part, so the pods of its ")
    assert "duplicate key" in found["message"]


def test_a_file_that_is_named_is_not_left_out(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES | {"apps/other.yaml": CONFLICT})
    assert main(["plan", ".", "-f", "apps/other.yaml"]) == 1
    assert "merge conflict" in capsys.readouterr().err


def test_without_a_nodepool_that_is_the_error(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"apps/other.yaml": CONFLICT})
    assert main(["plan", "."]) == 1
    assert "no NodePool in this folder" in capsys.readouterr().err


def test_a_change_beside_an_object_that_the_base_cannot_read_either_has_a_plan(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES | {"apps/other.yaml": CONFLICT})
    commit(work, "before")
    write(work, {"apps/web.yaml": WEB.replace("replicas: 1", "replicas: 2")})
    (work / "apps" / "other.yaml").rename(work / "apps" / "moved.yaml")
    capsys.readouterr()
    assert main([*COMPARE, "-o", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert "unread-object" in {d["code"] for d in made["diagnostics"]}


def test_a_review_of_a_folder_without_a_configuration_leaves_out_what_its_base_does(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES | {"apps/other.yaml": CONFLICT})
    commit(work, "before")
    write(work, {"apps/web.yaml": WEB.replace("replicas: 1", "replicas: 2")})
    commit(work, "after")
    review = ["ci", ".", "--base", "HEAD~1", "--set", "cluster=none", "--out", "../out"]
    assert main(review) == 0
    assert "unread-object" in capsys.readouterr().out
