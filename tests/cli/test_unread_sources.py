"""Sources that cannot be rendered: beside the nodes they are a warning, and never silence."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from reconciler.assembly.inputs.request import FleetRequest
from reconciler.assembly.inputs.sources import expect_complete, read_source
from reconciler.cli.main import main
from reconciler.model.errors import InvalidFleetError
from tests.cli.sourcefolders import CHART, CLASS, POOL, WEB, below, write
from tests.cli.test_sources import findings, needs_helm, needs_kustomize, plan, pods, work

__all__ = ["work"]

NODES = below("nodes", {"all.yaml": f"{POOL}---\n{CLASS}", "web.yaml": WEB})
LIBRARY = {"Chart.yaml": "apiVersion: v2\nname: common\nversion: 0.1.0\ntype: library\n"}
WITHOUT_VALUES = {
    "Chart.yaml": CHART["Chart.yaml"],
    "templates/web.yaml": WEB.replace(
        "replicas: 1", "replicas: {{ required `no count` .Values.n }}"
    ),
}
SPARE_NODES = {
    "Chart.yaml": CHART["Chart.yaml"],
    "templates/nodes.yaml": POOL.replace("general", "{{ required `no name` .Values.n }}"),
}
WITHOUT_SECRETS = {
    "kustomization.yaml": "resources: [web.yaml]\nconfigMapGenerator: [{name: a, files: [b]}]\n",
    "web.yaml": WEB.replace("name: web,", "name: app,"),
}
APPLICATION = """\
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: chart}
spec: {source: {repoURL: x, path: other}}
"""


def commit(work: Path, name: str) -> None:
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.com"]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], cwd=work, check=True)
    subprocess.run([*git, "add", "--all"], cwd=work, check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", name], cwd=work, check=True)


@needs_helm
@needs_kustomize
@pytest.mark.parametrize(
    ("source", "file", "says"),
    [
        (WITHOUT_VALUES, "other/templates/web.yaml", "no count"),
        (SPARE_NODES, "other/templates/nodes.yaml", "no name"),
        (WITHOUT_SECRETS, "other/kustomization.yaml", '"b" does not exist'),
    ],
)
def test_a_source_that_no_node_depends_on_is_left_out_with_a_warning(
    source: dict[str, str], file: str, says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES | below("other", source))
    (found,) = [f for f in findings(".", capsys) if f["severity"] != "info"]
    assert (found["code"], found["severity"], found["file"]) == ("unread-source", "warning", file)
    assert found["message"].startswith("other is ")
    assert says in found["message"]
    assert found["hint"]
    assert pods(plan(".", capsys)) >= 1
    source_ = read_source(FleetRequest(path="."))
    with pytest.raises(InvalidFleetError, match="other is "):
        expect_complete(source_.findings)


@needs_helm
def test_a_library_of_templates_is_no_finding(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        work, NODES | below("other", LIBRARY | {"templates/_web.tpl": "{{ define `a` }}{{ end }}"})
    )
    assert findings(".", capsys) == []


@needs_helm
@pytest.mark.parametrize("by", ["application", "list", "itself"])
def test_an_error_in_a_source_of_nodes_that_is_deployed_stays_one(
    by: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, below("other", SPARE_NODES))
    if by == "application":
        write(work, NODES | {"app.yaml": APPLICATION})
    if by == "list":
        write(work, NODES | {"reconciler.yaml": "sources: [{folder: nodes}, {chart: other}]\n"})
    assert "error" in [f["severity"] for f in findings(".", capsys)]
    assert main(["plan", "."]) == 1


@needs_helm
def test_without_nodes_elsewhere_only_the_chart_of_nodes_is_an_error(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, below("apps", WITHOUT_VALUES) | below("other", SPARE_NODES))
    found = {f["file"]: f["severity"] for f in findings(".", capsys)}
    assert found["other/templates/nodes.yaml"] == "error"
    assert found["apps/templates/web.yaml"] == "warning"


@needs_kustomize
def test_a_change_that_breaks_a_source_is_an_error(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it, the workloads of the source would look removed."""
    write(work, NODES | below("other", WITHOUT_SECRETS) | {"other/b": "a=b\n"})
    commit(work, "before")
    assert main(["plan", ".", "--base", "HEAD", "--set", "cluster=none"]) == 0
    (work / "other" / "b").unlink()
    capsys.readouterr()
    assert main(["plan", ".", "--base", "HEAD", "--set", "cluster=none"]) == 1
    assert '"b" does not exist' in capsys.readouterr().err
    commit(work, "after")
    assert main(["plan", ".", "--base", "HEAD", "--set", "cluster=none"]) == 0


@needs_kustomize
def test_a_change_that_adds_a_source_that_cannot_be_rendered_has_a_plan(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES)
    commit(work, "before")
    write(work, below("other", WITHOUT_SECRETS))
    assert main(["plan", ".", "--base", "HEAD", "--set", "cluster=none"]) == 0
    assert '"b" does not exist' in capsys.readouterr().out


@needs_kustomize
def test_nodes_are_new_beside_a_source_that_no_revision_can_read(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"app/kustomization.yaml": "resources: ['https://example.com/app.yaml']\n"})
    commit(work, "before")
    write(work, NODES)
    capsys.readouterr()
    assert main(["plan", ".", "--base", "HEAD", "--set", "cluster=none"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "has no NodePool in this folder: the fleet is new" in printed


@needs_kustomize
def test_a_change_that_makes_overlays_of_one_kustomization_has_to_name_one(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {"base/kustomization.yaml": "resources: [web.yaml]\n", "base/web.yaml": WEB}
    write(work, below("nodes", {"all.yaml": f"{POOL}---\n{CLASS}"}) | one)
    write(work, {"a/kustomization.yaml": "resources: [../base]\n"})
    commit(work, "before")
    write(work, {"b/kustomization.yaml": "resources: [../base]\n"})
    assert main(["plan", ".", "--base", "HEAD", "--set", "cluster=none"]) == 1
    assert "2 overlays share a base: a, b" in capsys.readouterr().err


def test_a_file_with_a_fault_that_is_no_object_is_a_warning(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, NODES | {"apps/values.yaml": "a: 1\nb: 2\na: 3\n"})
    (found,) = findings(".", capsys)
    assert (found["severity"], found["file"], found["line"]) == ("warning", "apps/values.yaml", 3)
    assert "duplicate key" in f"{found['message']} {found['hint']}"
    write(work, {"apps/values.yaml": "kind: NodePool\nb: 2\nb: 3\n"})
    assert "error" in [f["severity"] for f in findings(".", capsys)]


@needs_kustomize
@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_without_nodes_only_a_source_with_files_elsewhere_may_have_them(
    is_elsewhere: bool, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resource = "https://example.com/all.yaml" if is_elsewhere else "web.yaml"
    write(work, {"app/kustomization.yaml": f"resources: [{resource}]\npatches: [{{patch: x}}]\n"})
    write(work, {"app/web.yaml": WEB})
    severities = {f["code"]: f["severity"] for f in findings(".", capsys)}
    if is_elsewhere:
        assert severities["remote-source"] == "error"
    else:
        assert severities == {"unread-source": "warning", "empty-fleet": "error"}


@needs_helm
def test_missing_values_of_a_chart_of_nodes_name_those_that_it_has(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    application = APPLICATION.replace("path: other", "path: other, helm: {valueFiles: [a.yaml]}")
    write(
        work, below("other", CHART | {"values-prod.yaml": "cpu: 9\n"}) | {"app.yaml": application}
    )
    (found,) = [f for f in findings(".", capsys) if f["severity"] == "error"]
    assert (found["file"], found["code"]) == ("app.yaml", "missing-source")
    assert "sources: [{chart: other, values: [other/values-prod.yaml]}]" in found["hint"]


def test_a_template_with_placeholders_that_are_not_quoted_is_read(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """YAML alone reads them as mappings: one in an image kept a repository from being planned."""
    files = {
        "nodes.yaml": f"{POOL}---\n{CLASS.replace('role: nodes', 'role: {{ node_role }}')}",
        "web.yaml": WEB.replace("image: web,", "image: {{ registry }}/web,"),
    }
    write(work, files)
    assert pods(plan(".", capsys)) == 1
    (found,) = findings(".", capsys)
    assert (found["code"], found["severity"]) == ("placeholder", "warning")
    assert (found["file"], found["line"]) == ("nodes.yaml", 17)
    write(work, {"web.yaml": WEB.replace("replicas: 1", "replicas: {{ count }}")})
    (found,) = [f for f in findings(".", capsys) if f["severity"] == "error"]
    assert (found["code"], found["file"], found["line"]) == ("placeholder", "web.yaml", 5)
    write(work, {"web.yaml": "{{ if .Values.web }}\n" + WEB + "{{ end }}\n"})
    assert {f["file"] for f in findings(".", capsys) if f["severity"] == "error"} == {"web.yaml"}


@pytest.fixture
def without_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("RECONCILER_HELM", "RECONCILER_KUSTOMIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("without_tools")
def test_a_tool_that_many_sources_lack_is_named_once(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "edcba":
        write(work, below(f"charts/{name}", WITHOUT_VALUES))
    write(work, NODES)
    (found,) = [f for f in findings(".", capsys) if f["severity"] != "info"]
    assert (found["code"], found["severity"]) == ("unrendered-source", "warning")
    assert found["file"] == "charts/a/Chart.yaml"
    named = "5 sources are not planned: charts/a, charts/b, charts/c and 2 more"
    assert found["message"] == f"helm is not installed or not on PATH, so the pods of {named}"
    assert pods(plan(".", capsys)) == 1
    with pytest.raises(InvalidFleetError, match="so the pods of 5 sources"):
        expect_complete(read_source(FleetRequest(path=".")).findings)


@pytest.mark.usefixtures("without_tools")
@pytest.mark.parametrize(
    "files",
    [
        pytest.param(below("charts/a", SPARE_NODES) | NODES, id="it may render to nodes"),
        pytest.param(below("charts/a", WITHOUT_VALUES), id="nothing else has nodes"),
        pytest.param(
            below("charts/a", WITHOUT_VALUES)
            | NODES
            | {"reconciler.yaml": "sources: [{chart: charts/a}]\n"},
            id="the fleet requires it",
        ),
    ],
)
def test_a_source_that_may_have_the_nodes_needs_its_tool(
    files: dict[str, str], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, files)
    (found,) = [f for f in findings(".", capsys) if f["severity"] == "error"]
    assert found["code"] == "missing-tool"
    needed = "and charts/a has to be rendered"
    assert found["message"] == f"helm is not installed or not on PATH, {needed}"


@pytest.mark.parametrize("change", ["nothing", "adds", "removes"])
def test_a_comparison_needs_the_tools_of_both_revisions(
    change: str, work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policies on the cost of a change would pass, since neither revision has the pods."""
    chart = below("other", WITHOUT_VALUES)
    write(work, NODES if change == "adds" else NODES | chart)
    commit(work, "before")
    if change == "adds":
        write(work, chart)
    if change == "removes":
        shutil.rmtree(work / "other")
    git = shutil.which("git")
    assert git is not None
    (work.parent / "tools").mkdir()
    (work.parent / "tools" / "git").symlink_to(git)
    monkeypatch.setenv("PATH", str(work.parent / "tools"))
    monkeypatch.delenv("RECONCILER_HELM", raising=False)
    code = main(["plan", ".", "--base", "HEAD", "--set", "cluster=none"])
    printed = capsys.readouterr()
    if change == "removes":
        assert (code, "Cost of this change unknown" in printed.out) == (0, True)
    else:
        assert (code, "helm is not installed" in printed.err) == (1, True)


@pytest.mark.usefixtures("without_tools")
def test_sources_in_folders_named_like_a_sentence_are_counted_one_by_one(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folders were read from the messages, so a comma in a name made another tool of it."""
    for name in ("a, and b", "c"):
        write(work, below(f"charts/{name}", WITHOUT_VALUES))
    write(work, NODES)
    (found,) = [f for f in findings(".", capsys) if f["severity"] != "info"]
    named = "2 sources are not planned: charts/a, and b, charts/c"
    assert found["message"] == f"helm is not installed or not on PATH, so the pods of {named}"
