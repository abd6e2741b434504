"""Charts of nodes without values of their own: `init` is given some, or finds them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.source.plainyaml import load_all
from tests.cli.sourcefolders import CLASS, POOL, below, write

pytestmark = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")

TEMPLATE = (
    "{{- range .Values.pools }}\n---\n"
    + POOL.replace("{name: general}", "{name: {{ .name }}}")
    + "  limits: {cpu: {{ $.Values.limit }}}\n{{- end }}\n---\n"
    + CLASS
)
CHART = {
    "Chart.yaml": "apiVersion: v2\nname: nodes\nversion: 1.0.0\n",
    "values.yaml": "limit: 8\npools: []\n",
    "templates/nodes.yaml": TEMPLATE,
}


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def init(*words: str) -> int:
    names = ["--name", "blue", "--no-lock", "--region", "us-east-1"]
    return main(["init", "fleet", "--from", "given", *names, *words])


def pools() -> dict[str, str]:
    """Return the limit of CPU of each NodePool of the new fleet."""
    found = {}
    for path in Path("fleet/nodes").glob("nodepool-*.yaml"):
        (data,) = load_all(path.read_bytes())
        assert isinstance(data, dict)
        found[data["metadata"]["name"]] = str(data["spec"]["limits"]["cpu"])
    return found


def one(name: str, more: str = "") -> str:
    return f"pools: [{{name: {name}}}]\n{more}"


def chart(more: Mapping[str, str]) -> dict[str, str]:
    return {**below("given/charts/nodes", CHART), **below("given", more)}


def test_values_are_merged_in_their_order(work: Path) -> None:
    write(work, chart({}) | {"a.yaml": one("a", "limit: 16\n"), "b.yaml": one("b")})
    assert init("--values", "a.yaml", "--values", "b.yaml") == 0
    assert pools() == {"b": "16"}


@pytest.mark.parametrize(
    ("files", "name", "says"),
    [
        ({"clusters/prod.yaml": one("prod")}, "prod", "with the values in clusters/prod.yaml"),
        ({"charts/nodes/values-prod.yaml": one("prod")}, "prod",
         "with the values in charts/nodes/values-prod.yaml"),
        ({"clusters/prod.yaml": one("prod"), "charts/nodes/ci/full-values.yaml": one("full")},
         "prod", "with the values in clusters/prod.yaml"),
        ({"charts/nodes/ci/full-values.yaml": one("full")}, "full",
         "with the example values in charts/nodes/ci/full-values.yaml"),
        ({"charts/nodes/README.md": f"# Nodes\n\n```yaml\n{one('doc')}```\n"}, "doc",
         "with the example at charts/nodes/README.md:4"),
        ({"charts/nodes/values.yaml": "limit: 8\npools: []\n# - name: remark\n"}, "remark",
         "with the example values in the comments of charts/nodes/values.yaml"),
        ({"charts/nodes/values.yaml": "limit: 8\n# Pools:\n# pools:\n#   - name: remark\n"},
         "remark", "with the example values in the comments of charts/nodes/values.yaml"),
    ],
)  # fmt: skip
def test_values_of_the_repository_are_found_and_named(
    files: dict[str, str], name: str, says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, chart(files))
    assert init() == 0
    assert list(pools()) == [name]
    printed = capsys.readouterr().out
    assert says in printed.partition("Complete by hand")[2]
    assert "its own make no NodePool (pass those of your cluster with --values FILE)" in printed


def test_what_values_switch_off_is_switched_on(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = f"{POOL}  limits: {{cpu: 4}}\n---\n{CLASS}"
    template = f"{{{{- if .Values.pool.enabled }}}}\n{nodes}{{{{- end }}}}"
    files = {"templates/nodes.yaml": template, "values.yaml": "pool: {enabled: false}\n"}
    write(work, below("given", CHART | files))
    assert init() == 0
    assert pools() == {"general": "4"}
    assert "with what values.yaml switches off" in capsys.readouterr().out


def test_of_several_files_with_values_one_has_to_be_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, chart({f"clusters/{name}/nodes.yaml": one(name) for name in ("dev", "prod")}))
    assert init() == 1
    printed = capsys.readouterr().err
    assert "with each of 2 files of values: clusters/dev/nodes.yaml, clusters/prod" in printed
    assert "--values given/clusters/dev/nodes.yaml" in printed
    assert not Path("fleet").exists()
    assert init("--values", "given/clusters/prod/nodes.yaml") == 0
    assert pools() == {"prod": "8"}


def test_examples_do_not_count_beside_real_nodes(work: Path) -> None:
    real = f"{POOL}  limits: {{cpu: 2}}\n---\n{CLASS}"
    write(work, chart({"charts/nodes/ci/full-values.yaml": one("full"), "nodes.yaml": real}))
    assert init() == 0
    assert pools() == {"general": "2"}


@pytest.mark.parametrize(
    ("files", "words", "says"),
    [
        ({}, ["--values", "none.yaml"], "none.yaml: No such file or directory"),
        ({"list.yaml": "- a\n"}, ["--values", "list.yaml"], "list.yaml: is no mapping of values"),
        ({"a.yaml": "a: [\n"}, ["--values", "a.yaml"], "a.yaml"),
        ({"a.yaml": "a: 1\n", "given/charts/nodes/templates/nodes.yaml": "kind: Service\n"},
         ["--values", "a.yaml"], "--values: no chart with a NodePool"),
    ],
)  # fmt: skip
def test_values_that_cannot_be_used_are_named(
    files: dict[str, str], words: list[str], says: str,
    work: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write(work, chart({}) | files)
    assert init(*words) == 1
    assert says in capsys.readouterr().err
    assert not Path("fleet").exists()


def test_values_need_a_folder_with_charts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "fleet", "--values", "a.yaml"]) == 1
    assert "is used only with --from" in capsys.readouterr().err


def test_a_pool_of_a_chart_gets_the_class_and_the_requirements_that_its_values_leave_open(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = POOL.partition("    spec:\n")[0] + "    spec: {expireAfter: 720h}\n  limits: {cpu: 4}\n"
    files = {"templates/nodes.yaml": f"{pool}---\n{CLASS.replace('default', 'main')}"}
    write(work, below("given", CHART | files))
    assert init() == 0
    printed = capsys.readouterr().out
    assert "names no nodeClassRef; assumed: EC2NodeClass main" in printed
    assert "has no requirements; assumed: every instance type" in printed
