"""Repositories as they are: `validate`, `plan` and `init` render what a fleet is made from."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from reconciler.assembly.inputs.manifests import read_manifests
from reconciler.cli.main import main
from reconciler.source.plainyaml import load_all
from tests.cli.sourcefolders import BASE, CHART, CLASS, POOL, WEB, below, overlay, write

needs_kustomize = pytest.mark.skipif(
    shutil.which("kustomize") is None and shutil.which("kubectl") is None,
    reason="neither kustomize nor kubectl is installed",
)
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    read_manifests.cache_clear()
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def plan(path: str, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    code = main(["plan", path, "--set", "cluster=none", "-o", "json", *words])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found: dict[str, Any] = json.loads(captured.out)
    return found


def findings(path: str, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    main(["validate", path, "-o", "json", *words])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["diagnostics"]
    return found


def codes(path: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [one["code"] for one in findings(path, capsys)]


def init(source: str, *words: str) -> int:
    return main(["init", "fleet", "--from", source, "--name", "blue", "--no-lock", *words])


def taken() -> dict[str, dict[str, Any]]:
    """Return the objects of the new fleet by kind and name."""
    found = {}
    for path in sorted(Path("fleet").rglob("*.yaml")):
        if ".github" in path.parts or path.name.startswith((".", "reconciler")):
            continue
        (data,) = load_all(path.read_bytes())
        assert isinstance(data, dict)
        found[f"{data['kind']} {data['metadata']['name']}"] = data
    return found


def pods(found: dict[str, Any]) -> int:
    return sum(len(claim["pods"]) for claim in found["nodeClaims"])


PROD = overlay(
    "namePrefix: prod-", "replicas: [{name: web, count: 7}]", "patches: [{path: pool.yaml}]"
)
PATCH = (
    "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: general}\nspec: {weight: 50}\n"
)
NAMES = (
    "nameReference: [{kind: EC2NodeClass, group: karpenter.k8s.aws, fieldSpecs: "
    "[{kind: NodePool, group: karpenter.sh, path: spec/template/spec/nodeClassRef/name}]}]\n"
)


@needs_kustomize
def test_an_overlay_is_planned_as_kustomize_builds_it(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "overlays/prod/kustomization.yaml": PROD + "configurations: [names.yaml]\n",
        "overlays/prod/names.yaml": NAMES,
        "overlays/prod/pool.yaml": PATCH,
    }
    write(work, BASE | files)
    found = plan("overlays/prod", capsys)
    assert pods(found) == 7
    assert {claim["nodePool"] for claim in found["nodeClaims"]} == {"prod-general"}


@needs_kustomize
def test_a_broken_class_reference_is_named_with_the_lines_to_add(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"overlays/prod/kustomization.yaml": PROD, "overlays/prod/pool.yaml": PATCH}
    write(work, BASE | files)
    (found,) = findings("overlays/prod", capsys)
    assert found["code"] == "name-reference"
    assert 'NodePool "prod-general" launches nothing' in found["message"]
    assert (found["file"], found["line"]) == ("../../base/pool.yaml", 8)
    assert "configurations: [namereference.yaml]" in found["hint"]
    assert NAMES.strip() in found["hint"]


@needs_kustomize
@pytest.mark.parametrize("command", ["validate", "plan"])
def test_of_several_overlays_one_has_to_be_named(
    command: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"overlays/{name}/kustomization.yaml": overlay() for name in ("prod", "staging")}
    write(work, BASE | files)
    assert main([command, "."]) != 0
    printed = "".join(capsys.readouterr())
    assert "overlays/prod, overlays/staging" in printed
    assert "sources: [{kustomization: overlays/prod}]" in printed
    write(work, {"reconciler.yaml": "sources: [{kustomization: overlays/prod}]\n"})
    assert main(["validate", "."]) == 0


@needs_kustomize
def test_init_asks_which_overlay_and_takes_over_the_named_one(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"given/overlays/{n}/kustomization.yaml": overlay() for n in ("prod", "staging")}
    write(work, below("given", BASE) | files)
    assert init("given") == 1
    assert "pass one of them, such as --from given/overlays/prod" in capsys.readouterr().err
    assert not Path("fleet").exists()
    assert init("given/overlays/prod") == 0
    assert set(taken()) == {"EC2NodeClass default", "NodePool general", "Deployment web"}


WORKLOADS = {
    "karpenter/all.yaml": f"{POOL}---\n{CLASS}",
    "apps/base/kustomization.yaml": "resources: [web.yaml]\n",
    "apps/base/web.yaml": WEB,
} | {f"apps/overlays/{name}/kustomization.yaml": overlay() for name in ("prod", "staging")}
"""NodePools beside the overlays of workloads."""
TEMPLATE = """\
apiVersion: {group}/v1
kind: {kind}
metadata: {{name: a}}
spec: {{template: {{spec: {{containers: []}}}}}}
"""


@needs_kustomize
def test_sources_to_name_include_the_nodes_beside_overlays(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, WORKLOADS)
    (found,) = [f for f in findings(".", capsys) if f["severity"] == "warning"]
    assert found["code"] == "ambiguous-workloads"
    assert "one of them has to be named; none is planned" in found["message"]
    assert pods(plan(".", capsys)) == 0
    assert "pass the folder of one" not in found["hint"], "it has no nodes"
    named = found["hint"].partition("all that is read: ")[2]
    assert named == "sources: [{folder: karpenter}, {kustomization: apps/overlays/prod}]"
    write(work, {"reconciler.yaml": named})
    assert pods(plan(".", capsys)) == 1


@needs_kustomize
def test_init_prefers_an_overlay_and_keeps_the_rest_of_the_folder(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, below("given", WORKLOADS))
    assert init("given") == 0
    printed = capsys.readouterr().out.partition("Complete by hand (1)")[2]
    assert "none is taken over; name one, such as --prefer apps/overlays/prod" in printed
    assert "Deployment web" not in taken()
    shutil.rmtree("fleet")
    assert init("given", "--prefer", "apps/overlays/prod") == 0
    assert {"Deployment web", "NodePool general"} <= set(taken())


@needs_kustomize
def test_a_preferred_overlay_counts_alone_if_argo_cd_names_all(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    application = (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {{name: {0}}}\nspec:\n"
        "  source: {{repoURL: x, path: apps/overlays/{0}, kustomize: {{namePrefix: {0}-}}}}\n"
    )
    apps = {f"argo/{name}.yaml": application.format(name) for name in ("prod", "staging")}
    write(work, below("given", WORKLOADS | apps))
    assert init("given", "--prefer", "apps/overlays/prod") == 0
    assert [name for name in taken() if name.startswith("Deployment")] == ["Deployment prod-web"]


@needs_kustomize
def test_init_prefers_an_overlay_of_nodes(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {f"given/overlays/{n}/kustomization.yaml": overlay() for n in ("prod", "staging")}
    files["given/other/web.yaml"] = WEB.replace("name: web,", "name: other,")
    write(work, below("given", BASE) | files)
    assert init("given") == 1
    assert "choose one, such as --prefer overlays/prod\n" in capsys.readouterr().err
    assert init("given", "--prefer", "overlays/prod") == 0
    assert {"Deployment other", "Deployment web", "NodePool general"} <= set(taken())


@needs_kustomize
@pytest.mark.parametrize(
    ("object_", "is_asked"),
    [
        (TEMPLATE.format(group="kyverno.io", kind="ClusterPolicy"), False),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n", False),
        (TEMPLATE.format(group="example.com", kind="Widget"), True),
        ('{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}}', True),
        ("apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: a}\n", True),
    ],
)
def test_overlays_that_no_plan_depends_on_need_no_choice(
    object_: str, is_asked: bool, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {**WORKLOADS, "apps/base/web.yaml": object_})
    assert ("ambiguous-workloads" in codes(".", capsys)) == is_asked


@needs_kustomize
def test_a_base_above_is_read_although_it_names_a_chart_from_elsewhere(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = (
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: karpenter}\n"
        "spec: {chart: {spec: {chart: karpenter, sourceRef: {kind: HelmRepository, name: x}}}}\n"
    )
    base = BASE | {
        "base/release.yaml": release,
        "base/kustomization.yaml": "resources: [pool.yaml, class.yaml, web.yaml, release.yaml]\n",
    }
    write(work, below("given", base | {"overlays/prod/kustomization.yaml": overlay()}))
    assert init("given/overlays/prod") == 0
    assert "NodePool general" in taken()
    assert 'chart "karpenter" is in the Helm repository' in capsys.readouterr().out


@needs_kustomize
def test_a_patch_is_never_an_object(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    patch = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: shop}\n"
    files = {
        "kustomization.yaml": "resources: [base]\npatches: [{path: aaa-patch.yaml}]\n",
        "aaa-patch.yaml": patch + "spec: {replicas: 3}\n",
    }
    write(work, BASE | files)
    assert pods(plan(".", capsys)) == 3


@needs_kustomize
def test_a_finding_names_the_patch_that_causes_it(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "kustomization.yaml": "resources: [base]\npatches: [{path: patch.yaml}]\n",
        "patch.yaml": PATCH.replace("weight: 50", "weight: 500"),
    }
    write(work, BASE | files)
    (found,) = findings(".", capsys)
    assert (found["file"], found["line"], found["path"]) == ("patch.yaml", 4, "spec.weight")


@needs_kustomize
def test_a_file_that_the_kustomization_does_not_list_is_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, BASE | {"base/spot.yaml": POOL.replace("general", "spot")})
    (found,) = findings(".", capsys)
    assert (found["code"], found["file"]) == ("unlisted-file", "base/spot.yaml")


@needs_kustomize
@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("resources: [../base]", "outside-source", "leads out of the fleet"),
        ("resources: [/etc/passwd]", "outside-source", "leads out of the fleet"),
        ("resources: [gone.yaml]", "missing-source", "does not exist"),
        (
            "resources: ['github.com/acme/nodes//base?ref=v1']",
            "remote-source",
            "kustomize build 'github.com/acme/nodes//base?ref=v1' > base.yaml",
        ),
        (
            "resources: ['https://example.com/nodes.yaml']",
            "remote-source",
            "curl -fsSL https://example.com/nodes.yaml > nodes.yaml",
        ),
        ("helmCharts: [{name: karpenter}]", "remote-source", "kustomize build --enable-helm"),
    ],
)
def test_what_cannot_be_read_offline_is_named(
    line: str, code: str, says: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=work, check=True)
    write(work, {"kustomization.yaml": line + "\n"})
    first = next(f for f in findings(".", capsys) if f["code"] != "empty-fleet")
    assert (first["code"], first["file"], first["line"]) == (code, "kustomization.yaml", 1)
    assert says in f"{first['message']} {first['hint']}"


@needs_kustomize
def test_a_patch_of_a_remote_object_is_no_second_error(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: remote}\n"
    lines = "resources: ['https://example.com/app.yaml']\npatches: [{path: patch.yaml}]\n"
    app = {"app/kustomization.yaml": lines, "app/patch.yaml": patch}
    write(work, {f"nodes/{name}": text for name, text in BASE.items()} | app)
    assert codes(".", capsys) == ["unread-source"]


def test_an_error_elsewhere_names_the_folder_of_the_nodepools(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    advice = "; all NodePools are in clusters/blue, which can be passed as PATH"
    fleet = {"clusters/blue/pools/all.yaml": POOL, "clusters/blue/class.yaml": CLASS}
    write(work, fleet | {"clusters/blue/spot.yaml": POOL.replace("general", "spot")})
    broken = "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\n"
    write(work, {"apps/class.yaml": broken})
    assert main(["plan", "."]) == 1
    assert advice in "".join(capsys.readouterr())
    assert main(["plan", "clusters/blue"]) == 0
    for invalid in ("clusters/blue/bad.yaml", "clusters/green/bad.yaml"):
        write(work, {invalid: "kind: NodePool\n"})
        capsys.readouterr()
        assert main(["plan", "."]) == 1
        assert advice not in "".join(capsys.readouterr())
        (work / invalid).unlink()


@needs_kustomize
def test_a_chart_that_kustomize_would_download_hides_nothing_else(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Like a chart that Flux or Argo CD names: a warning says that its objects are missing."""
    lines = "helmCharts: [{name: karpenter, repo: 'oci://public.ecr.aws/karpenter'}]\n"
    write(work, BASE | {"kustomization.yaml": lines + "resources: [base]\n"})
    found = plan(".", capsys)
    assert pods(found) == 1
    (finding,) = [d for d in found["diagnostics"] if d["code"] == "remote-source"]
    assert finding["severity"] == "warning"


@needs_helm
def test_a_chart_is_planned_with_the_values_that_the_fleet_names(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, CHART | {"values-prod.yaml": "replicas: 4\ncpu: 64\n"})
    assert pods(plan(".", capsys)) == 1
    settings = "sources: [{chart: ., values: [values-prod.yaml], set: {replicas: 5}}]\n"
    write(work, {"reconciler.yaml": settings})
    assert pods(plan(".", capsys)) == 5


@needs_helm
def test_a_chart_that_needs_a_value_names_the_template(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = CHART["templates/nodes.yaml"].replace(".Values.role", 'required "no role" .Values.x')
    write(work, CHART | {"templates/nodes.yaml": template})
    (found,) = findings(".", capsys)
    assert found["code"] == "render-failed"
    assert (found["file"], found["line"]) == ("templates/nodes.yaml", 18)
    assert "no role" in found["message"]


@needs_helm
@pytest.mark.parametrize(
    ("limit", "file", "line"),
    [("many", "templates/nodes.yaml", 5), ("{{ .Values.cpu }}", "values.yaml", 2)],
)
def test_a_finding_in_a_chart_names_the_template_or_the_value(
    limit: str, file: str, line: int, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    template = CHART["templates/nodes.yaml"].replace("{{ .Values.cpu }}", limit)
    values = {"values.yaml": "role: x\ncpu: many\nreplicas: 1\n"}
    write(work, CHART | values | {"templates/nodes.yaml": template})
    (found,) = findings(".", capsys)
    assert (found["file"], found["line"], found["path"]) == (file, line, "spec.limits.cpu")


@needs_helm
def test_objects_that_a_template_does_not_separate_are_one_finding_at_it(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = WEB.replace("web,", "web-{{ $n }},") + "# end\n"
    many = "{{- range $n := until 3 -}}\n---\n" + many + "{{- end }}\n"
    write(work, below("nodes", CHART) | {"nodes/templates/many.yaml": many})
    (found,) = [f for f in findings(".", capsys) if f["severity"] == "error"]
    assert (found["file"], found["line"]) == ("nodes/templates/many.yaml", 1)
    assert "its output is not valid: another object begins here" in found["message"]


@needs_helm
def test_a_missing_dependency_is_named_and_the_rest_is_rendered(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = CHART["Chart.yaml"] + (
        "dependencies:\n  - {name: karpenter, version: 1.6.0, repository: 'oci://x/y'}\n"
    )
    write(work, CHART | {"Chart.yaml": chart})
    (found,) = findings(".", capsys)
    assert (found["code"], found["severity"]) == ("missing-dependency", "warning")
    assert "helm dependency build" in found["hint"]
    assert pods(plan(".", capsys)) == 1


@needs_helm
def test_a_dependency_in_the_same_repository_is_rendered(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parent = (
        "apiVersion: v2\nname: all\nversion: 0.1.0\n"
        "dependencies: [{name: nodes, version: 0.1.0, repository: 'file://../nodes'}]\n"
    )
    files = below("charts/nodes", CHART) | {"charts/all/Chart.yaml": parent}
    write(work, files | {"reconciler.yaml": "sources: [{chart: charts/all}]\n"})
    assert pods(plan(".", capsys)) == 1


FLUX = """\
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: {name: apps, namespace: flux-system}
spec:
  path: ./apps/prod
  sourceRef: {kind: GitRepository, name: flux-system}
  namePrefix: eu-
  postBuild: {substitute: {count: "5", role: blue-nodes}}
"""


@needs_kustomize
def test_flux_names_the_path_the_prefix_and_the_variables(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = below("apps", BASE) | {
        "apps/base/web.yaml": WEB.replace("replicas: 1", "replicas: ${count}"),
        "apps/base/class.yaml": CLASS.replace("role: nodes", 'role: "${role:=none}"'),
        "apps/prod/kustomization.yaml": "resources: [../base]\nconfigurations: [names.yaml]\n",
        "apps/prod/names.yaml": NAMES,
        "clusters/prod/apps.yaml": FLUX,
    }
    write(work, below("given", base))
    assert init("given") == 0
    found = taken()
    assert found["EC2NodeClass eu-default"]["spec"]["role"] == "blue-nodes"
    assert found["Deployment eu-web"]["spec"]["replicas"] == 5
    assert init("given/clusters/prod") == 1  # the new fleet exists already
    shutil.rmtree("fleet")
    assert init("given/clusters/prod") == 0
    assert taken() == found


@needs_kustomize
def test_a_folder_that_flux_points_at_needs_no_kustomization(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"apps/prod/nodes.yaml": POOL + "---\n" + CLASS, "apps/prod/web.yaml": WEB}
    flux = FLUX.replace("  namePrefix: eu-\n", "")
    write(work, files | {"clusters/prod.yaml": flux})
    assert pods(plan(".", capsys)) == 1


ARGO = """\
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: {name: nodes}
spec:
  destination: {namespace: kube-system}
  source:
    repoURL: https://git.example.com/platform.git
    path: charts/nodes
    helm: {valueFiles: [values-prod.yaml], valuesObject: {replicas: 6}}
"""


@needs_helm
def test_argo_cd_names_the_chart_and_its_values(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chart = below("charts/nodes", CHART) | {"charts/nodes/values-prod.yaml": "role: prod\n"}
    write(work, below("given", chart | {"apps/nodes.yaml": ARGO}))
    assert init("given") == 0
    assert taken()["EC2NodeClass default"]["spec"]["role"] == "prod"
    assert taken()["Deployment web"]["spec"]["replicas"] == 6


@needs_kustomize
def test_applications_of_several_overlays_have_one_cause_and_no_duplicates(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"base/kustomization.yaml": "resources: [nodes.yaml]\n"}
    files["base/nodes.yaml"] = f"{POOL}---\n{CLASS}"
    for name in ("dev", "prod"):
        files[f"overlays/{name}/kustomization.yaml"] = "resources: [../../base]\n"
        files[f"apps/{name}.yaml"] = (
            f"apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {{name: {name}}}\n"
            f"spec:\n  source: {{repoURL: x, path: overlays/{name}}}\n"
        )
    write(work, files)
    assert [f["code"] for f in findings(".", capsys) if f["severity"] == "error"] == [
        "ambiguous-source"
    ]
    (work / "apps/dev.yaml").unlink()
    assert pods(plan(".", capsys)) == 0, "one of them is named then"


@pytest.mark.parametrize("path", [".", "apps"])
@pytest.mark.parametrize("recurses", [False, True])
def test_argo_cd_reads_the_files_of_a_folder_and_only_if_told_those_below_it(
    path: str, recurses: bool, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it does not read stays an object of the folder: somebody else applies it."""
    text = "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: root}\n"
    text += f"spec:\n  destination: {{namespace: shop}}\n  source: {{repoURL: x, path: {path}"
    text += ", directory: {recurse: true}}\n" if recurses else "}\n"
    files = {
        "root.yaml": text,
        "nodes/all.yaml": f"{POOL}---\n{CLASS}",
        f"{path}/web/web.yaml": WEB.replace(", namespace: shop", ""),
    }
    write(work, files)
    document = plan(".", capsys)
    (claim,) = document["nodeClaims"]
    assert claim["pods"] == ["shop/web-00000" if recurses else "default/web-00000"]


@needs_helm
@pytest.mark.parametrize(
    "generator",
    [
        "list: {elements: [{name: nodes, folder: charts/nodes}]}",
        "git: {repoURL: x, directories: [{path: charts/*}, {path: charts/other, exclude: true}]}",
    ],
)
def test_an_application_set_makes_applications(
    generator: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = "{{folder}}" if generator.startswith("list") else "{{path}}"
    text = (
        "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: all}\n"
        f"spec:\n  generators: [{{{generator}}}]\n  template:\n    metadata: {{name: nodes}}\n"
        f"    spec: {{source: {{repoURL: x, path: '{path}'}}}}\n"
    )
    other = {"charts/other/pool.yaml": POOL.replace("general", "other")}
    write(work, below("charts/nodes", CHART) | other | {"apps/set.yaml": text})
    assert pods(plan(".", capsys)) == 1


APPLICATION_SET = (
    "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: all}\n"
    "spec:\n  generators: [{generator}]\n  template:\n    metadata: {name: 'NAME'}\n"
    "    spec: {source: {repoURL: x, path: 'workloads', "
    "kustomize: {namePrefix: 'NAME-', replicas: [{name: web, count: 'COUNT'}]}}}\n"
)
LISTED = "{list: {elements: [{name: a, count: 1}, {name: b, count: 2}]}}"
MATRIX = (
    "{matrix: {generators: [{list: {elements: [{env: x}, {env: z}]}}, "
    "{list: {elements: [{name: '{{env}}1', count: 1}]}}]}}"
)
MERGE = (
    f"{{merge: {{mergeKeys: [name], generators: [{LISTED}, "
    "{list: {elements: [{name: b, count: 5}, {name: c, count: 9}]}}]}}"
)
CLUSTERS = "---\n".join(
    f"apiVersion: v1\nkind: Secret\nmetadata:\n  name: c{number}-secret\n  namespace: argocd\n"
    "  labels: {argocd.argoproj.io/secret-type: cluster,"
    f" example.com/env: {env}, pods: '{number}', id: '{number}'}}\n"
    f"stringData: {{name: c{number}, server: 'https://c'}}\n"
    for number, env in ((1, "dev"), (2, "prod"))
)
FILES = "{git: {repoURL: x, files: [{path: 'envs/**/config.json'}]}}"


@needs_kustomize
@pytest.mark.parametrize(
    ("generator", "name", "count", "found"),
    [
        (LISTED, "{{name}}", "{{count}}", {"a-web": 1, "b-web": 2}),
        (FILES, "{{ .path.basename }}", "{{ .web.count }}", {"blue-web": 3, "green-web": 4}),
        (FILES, "{{ index .path.segments 1 }}", "{{web.count}}", {"blue-web": 3, "eu-web": 4}),
        (FILES, "{{path[1]}}", "{{web.count}}", {"blue-web": 3, "eu-web": 4}),
        (
            MATRIX,
            "{{env}}{{name}}",
            "{{count}}",
            {"xx1-web": 1, "zz1-web": 1},
        ),
        (
            f"{{matrix: {{generators: [{{clusters: {{}}}}, {LISTED}]}}}}",
            "{{ .name }}",
            "{{count}}",
            {"a-web": 1, "b-web": 2},
        ),
        (
            MERGE,
            "{{name}}",
            "{{count}}",
            {"a-web": 1, "b-web": 5},
        ),
        (
            LISTED.removesuffix("}") + ", selector: {matchLabels: {name: b}}}",
            "{{name}}",
            "{{count}}",
            {"b-web": 2},
        ),
        (
            "{git: {repoURL: x, directories: [{path: 'envs/*'}], values: {pods: '2'}}}",
            "{{path.basename}}",
            "{{values.pods}}",
            {"blue-web": 2, "eu-web": 2},
        ),
        ("{clusters: {}}", "{{name}}", "{{metadata.labels.pods}}", {"c1-web": 1, "c2-web": 2}),
        (
            "{clusters: {selector: {matchLabels: {example.com/env: prod}}, values: {pods: '3'}}}",
            "{{ .nameNormalized }}-{{ index .metadata.labels `example.com/env` }}",
            "{{values.pods}}",
            {"c2-prod-web": 3},
        ),
        (
            "{clusters: {selector: {matchExpressions: [{key: id, operator: In, values: ['1']}]}}}",
            "{{name}}-{{metadata.labels.example.com/env}}",
            "{{ .metadata.labels.pods }}",
            {"c1-dev-web": 1},
        ),
    ],
)
def test_the_generators_of_an_application_set_give_its_applications(
    generator: str,
    name: str,
    count: str,
    found: dict[str, int],
    work: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = APPLICATION_SET.replace("{generator}", generator)
    files = {
        "reconciler.yaml": "apiVersion: reconciler/v1\nkind: Configuration\n"
        "sources: [{gitops: apps}, {folder: nodes}]\n",
        "apps/set.yaml": text.replace("NAME", name).replace("COUNT", count),
        "workloads/kustomization.yaml": "resources: [web.yaml]\n",
        "workloads/web.yaml": WEB,
        "nodes/all.yaml": POOL + "---\n" + CLASS,
        "envs/blue/config.json": '{"web": {"count": 3}}',
        "envs/eu/green/config.json": '{"web": {"count": 4}}',
        "envs/eu/green/other.json": '{"web": {"count": 9}}',
    }
    if "clusters: {" in generator and "matrix" not in generator:
        files["apps/clusters.yaml"] = CLUSTERS
    write(work, files)
    made = plan(".", capsys)
    counts = Counter(p["pod"].partition("/")[2].rpartition("-")[0] for p in made["placements"])
    assert counts == found


@pytest.mark.parametrize(
    "generator",
    [
        "{clusters: {selector: {matchLabels: {env: prod}}}}",
        "{scmProvider: {github: {organization: x}}}",
        f"{{matrix: {{generators: [{{pullRequest: {{}}}}, {LISTED}]}}}}",
        "{plugin: {configMapRef: {name: x}}}",
    ],
)
def test_a_generator_that_needs_a_cluster_or_a_service_is_named(
    generator: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = APPLICATION_SET.replace("{generator}", generator)
    write(work, {"apps/set.yaml": text, "nodes/all.yaml": POOL + "---\n" + CLASS})
    (found,) = [f for f in findings(".", capsys) if f["code"] == "remote-source"]
    assert "cannot be read offline: it asks " in found["message"]
    assert "its Applications are missing" in found["message"]
    assert "sources: [{kustomization: FOLDER}]" in found["hint"]


def test_a_path_with_the_label_of_an_unknown_cluster_asks_for_the_cluster(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = """'envs/{{ index .metadata.labels "env" }}'"""
    text = APPLICATION_SET.replace("{generator}", "{clusters: {}}").replace("'workloads'", path)
    write(work, {"apps/set.yaml": text, "nodes/all.yaml": POOL + "---\n" + CLASS,
                 "envs/prod/web.yaml": WEB})  # fmt: skip
    (found,) = [f for f in findings(".", capsys) if f["code"] == "remote-source"]
    assert "depends on a value that is not in this repository" in found["message"]
    assert "add the Secret of the cluster" in found["hint"]
    assert "sources: [{kustomization: FOLDER}]" in found["hint"]


def test_a_selector_of_every_cluster_selects_that_of_the_fleet(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = "{matchLabels: {argocd.argoproj.io/secret-type: cluster}}"
    text = APPLICATION_SET.replace("{generator}", f"{{clusters: {{selector: {every}}}}}")
    files = {"workloads/web.yaml": WEB, "nodes/all.yaml": POOL + "---\n" + CLASS}
    files["apps/set.yaml"] = text.replace(", kustomize: {namePrefix: 'NAME-', replicas: "
                                          "[{name: web, count: 'COUNT'}]}", "")  # fmt: skip
    write(work, files)
    assert pods(plan(".", capsys)) == 1


def test_files_that_a_generator_or_a_chart_from_elsewhere_reads_need_no_kind(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = APPLICATION_SET.replace("{generator}", FILES)
    remote = (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: other}\n"
        "spec:\n  sources:\n"
        "  - {repoURL: 'https://charts', chart: karpenter,"
        " helm: {valueFiles: [$own/values/karpenter.yaml]}}\n"
        "  - {repoURL: x, ref: own}\n"
    )
    config = '{"web": {"count": 3}}'
    files = {
        "apps/set.yaml": text.replace("NAME", "{{path.basename}}").replace(
            "COUNT", "{{web.count}}"
        ),
        "apps/karpenter.yaml": remote,
        "workloads/kustomization.yaml": "resources: [web.yaml]\n",
        "workloads/web.yaml": WEB,
        "nodes/all.yaml": POOL + "---\n" + CLASS,
        "envs/blue/config.json": config,
        "values/karpenter.yaml": "replicas: 2\n",
        "values/unused.yaml": "replicas: 2\n",
    }
    write(work, files)
    found = {(f["file"], f["code"]) for f in findings(".", capsys) if f["code"] == "no-object"}
    assert found == {("values/unused.yaml", "no-object")}


def test_a_generator_that_reads_objects_hides_none_of_them(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = "{git: {repoURL: x, files: [{path: 'nodes/*.yaml'}]}}"
    text = APPLICATION_SET.replace("{generator}", every).replace("COUNT", "1")
    write(work, {"apps/set.yaml": text, "nodes/all.yaml": POOL + "---\n" + CLASS,
                 "workloads/kustomization.yaml": "resources: [web.yaml]\n",
                 "workloads/web.yaml": WEB})  # fmt: skip
    assert pods(plan(".", capsys)) == 1
    assert "missing-kind" not in codes(".", capsys)


TWO_GROUPS = (
    {f"envs/{env}/nodes/kustomization.yaml": "resources: [../../../base]\n" for env in "ab"}
    | {f"envs/{env}/apps/kustomization.yaml": "resources: [../../../web]\n" for env in "ab"}
    | BASE
    | {"web/kustomization.yaml": "resources: [web.yaml]\n",
       "web/web.yaml": "# scheduled on a NodePool\n" + WEB.replace("name: web", "name: api", 1)}
)  # fmt: skip


@needs_kustomize
def test_the_overlay_that_an_application_names_is_the_one(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: NAME}\n"
        "spec: {source: {repoURL: x, path: envs/b/NAME}}\n"
    )
    apps = {f"apps/{n}.yaml": text.replace("NAME", n) for n in ("nodes", "apps")}
    write(work, TWO_GROUPS | apps)
    assert pods(plan(".", capsys)) == 2


@needs_kustomize
def test_of_overlays_in_folders_of_an_environment_that_folder_is_proposed(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, TWO_GROUPS)
    hints = {f["code"]: f["hint"] for f in findings(".", capsys) if f["severity"] != "info"}
    assert set(hints) == {"ambiguous-source", "ambiguous-workloads"}
    for hint in hints.values():
        assert hint.startswith("pass the folder of one, such as envs/a, or ")
        assert "[{kustomization: envs/a/apps}, {kustomization: envs/a/nodes}]" in hint
    assert init(".") == 1
    printed = capsys.readouterr().err
    assert "such as --from ./envs/a, " in printed
    assert printed.endswith("such as --prefer envs/a\n")
    subprocess.run(["git", "init", "-q", "."], check=True, cwd=work)
    assert init("envs/a") == 0
    assert set(taken()) == {
        "NodePool general", "EC2NodeClass default", "Deployment web", "Deployment api"
    }  # fmt: skip


@needs_helm
def test_releases_of_one_name_and_chart_in_several_namespaces_are_all_read(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\n"
        "metadata: {name: web, namespace: TENANT}\nspec:\n"
        "  chart: {spec: {chart: ./charts/web, sourceRef: {kind: GitRepository, name: x}}}\n"
        "  values: {replicas: COUNT}\n"
    )
    web = WEB.replace("replicas: 1", "replicas: {{ .Values.replicas }}")
    releases = [text.replace("TENANT", n).replace("COUNT", c) for n, c in (("a", "1"), ("b", "2"))]
    files = {
        "charts/web/Chart.yaml": CHART["Chart.yaml"],
        "charts/web/templates/web.yaml": web.replace("shop", '"{{ .Release.Namespace }}"'),
        "tenants.yaml": "---\n".join(releases),
        "nodes.yaml": POOL + "---\n" + CLASS,
    }
    write(work, files)
    assert pods(plan(".", capsys)) == 3


HPA = """\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 4
  maxReplicas: 9
"""


@pytest.mark.parametrize(
    "kind", ["files", "kustomization", pytest.param("chart", marks=needs_helm)]
)
def test_objects_of_an_application_are_in_the_namespace_of_its_destination(
    kind: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web = WEB.replace("namespace: shop", "namespace: kube-system")  # the other names none
    application = ARGO.partition("    helm:")[0]
    files = {"charts/nodes/nodes.yaml": POOL + "---\n" + CLASS + "---\n" + web + "---\n" + HPA}
    if kind == "chart":
        files = below("charts/nodes", CHART | {"templates/web.yaml": f"{web}---\n{HPA}"})
    elif kind == "kustomization":
        files["charts/nodes/kustomization.yaml"] = "resources: [nodes.yaml]\n"
    write(work, below("given", files | {"apps/nodes.yaml": application}))
    assert init("given") == 0
    assert taken()["HorizontalPodAutoscaler web"]["metadata"]["namespace"] == "kube-system"
    assert "namespace" not in taken()["NodePool general"]["metadata"]
    assert pods(plan("fleet", capsys)) == 4
    assert not [f for f in findings("fleet", capsys) if "not in this folder" in f["message"]]


RAW_VALUES = {
    "helm": "  chart: {spec: {chart: raw, sourceRef: {kind: HelmRepository, name: bedag}}}\n"
    "  values: {resources: [POOL, CLASS]}\n",
    "text": "  chart: {spec: {chart: raw, sourceRef: {kind: HelmRepository, name: bedag}}}\n"
    "  values: {templates: [TEXT]}\n",
    "argo": "  source: {repoURL: 'https://x', chart: raw,\n"
    "    helm: {valuesObject: {a: [POOL, CLASS]}}}\n",
}


@pytest.mark.parametrize("kind", RAW_VALUES)
def test_objects_in_the_values_of_a_chart_from_elsewhere_are_read_and_named(
    kind: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool, node_class = (json.dumps(next(iter(load_all(t.encode())))) for t in (POOL, CLASS))
    version = {"argo": "argoproj.io/v1alpha1", "helm": "helm.toolkit.fluxcd.io/v2"}
    release = (
        f"apiVersion: {version.get(kind, version['helm'])}\n"
        f"kind: {'Application' if kind == 'argo' else 'HelmRelease'}\n"
        f"metadata: {{name: nodes, namespace: infra}}\nspec:\n{RAW_VALUES[kind]}"
    )
    release = release.replace("TEXT", json.dumps(f"{POOL}---\n{CLASS}"))
    release = release.replace("POOL", pool).replace("CLASS", node_class)
    write(work, {"nodes.yaml": release, "web.yaml": WEB})
    assert pods(plan(".", capsys)) == 1
    (found,) = [f for f in findings(".", capsys) if f["code"] == "remote-source"]
    assert (
        "except for objects in its values: NodePool general, EC2NodeClass def" in found["message"]
    )
    assert init(".") == 0
    assert {"NodePool general", "EC2NodeClass default"} <= taken().keys()


def test_a_finding_on_an_object_in_values_is_at_the_values(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = json.dumps(next(iter(load_all(POOL.encode()))))
    broken = broken.replace("on-demand", "on-demandd")
    release = (
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: nodes}\n"
        f"spec:\n{RAW_VALUES['helm'].replace('POOL, CLASS', broken)}"
    )
    write(work, {"nodes.yaml": release, "class.yaml": CLASS})
    found = [f for f in findings(".", capsys) if "on-demandd" in f["message"]]
    assert {(f["file"], f["line"]) for f in found} == {("nodes.yaml", 6)}


@needs_kustomize
def test_a_folder_that_an_object_in_a_later_one_names_is_read_once(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its root is found before the cluster's, and would be read without the variables of Flux."""
    flux = (
        "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\n"
        "metadata: {name: apps, namespace: flux-system}\nspec:\n  path: ./apps\n"
        "  sourceRef: {kind: GitRepository, name: flux-system}\n"
        "  postBuild: {substitute: {replicas: '4'}}\n"
    )
    web = WEB.replace("replicas: 1", "replicas: ${replicas}")
    files = {
        "apps/kustomization.yaml": "resources: [web.yaml]\n",
        "apps/web.yaml": web,
        "clusters/kustomization.yaml": "resources: [apps.yaml]\n",
        "clusters/apps.yaml": flux,
        "nodes.yaml": POOL + "---\n" + CLASS,
    }
    write(work, files)
    assert pods(plan(".", capsys)) == 4


def test_a_chart_in_a_registry_is_named_with_the_command_that_vendors_it(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = ARGO.replace("path: charts/nodes", "chart: karpenter")
    write(work, {"nodes.yaml": POOL + "---\n" + CLASS, "apps/karpenter.yaml": remote})
    found = next(f for f in findings(".", capsys) if f["code"] == "remote-source")
    assert (found["file"], found["line"]) == ("apps/karpenter.yaml", 8)
    assert "helm pull" in found["hint"]


def test_a_missing_tool_is_named_with_two_ways_out(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, CHART)
    monkeypatch.setenv("PATH", "/nowhere")
    (found,) = findings(".", capsys)
    assert found["code"] == "missing-tool"
    assert "helm is not installed or not on PATH" in found["message"]
    assert "install Helm" in found["hint"]
    assert "reconciler plan -f -" in found["hint"]


def test_a_tool_that_is_named_but_does_not_work_is_reported(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, CHART)
    monkeypatch.setenv("RECONCILER_HELM", "/bin/false")
    (found,) = findings(".", capsys)
    assert "/bin/false is not usable" in found["message"]


def stdin(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_manifests_from_standard_input_replace_the_folder(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(work, CHART | {"reconciler.yaml": "aws: {region: eu-west-1}\n"})
    stdin(f"{POOL}---\n{CLASS}---\n{WEB}", monkeypatch)
    capsys.readouterr()
    assert main(["plan", "-f", "-", "--set", "cluster=none", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert pods(found) == 1
    assert "eu-west-1a" in json.dumps(found["nodeClaims"])


def test_manifests_from_a_file_join_the_folder(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"fleet/nodes.yaml": POOL + "---\n" + CLASS, "web.yaml": WEB})
    assert pods(plan("fleet", capsys, "-f", "web.yaml")) == 1
    assert pods(plan("fleet", capsys)) == 0


def test_init_takes_over_rendered_manifests_from_standard_input(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin(f"{POOL}---\n{CLASS}", monkeypatch)
    assert init("-") == 0
    assert set(taken()) == {"EC2NodeClass default", "NodePool general"}


def test_standard_input_is_read_only_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", "-", "--snapshot", "-"]) == 1
    assert "standard input can be read only once" in capsys.readouterr().err


@needs_kustomize
def test_a_base_is_rendered_from_its_commit(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The work tree differs from both commits, and its files must not count for the base."""
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.com"]
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], cwd=work, check=True)
    files = {f"overlays/{name}/kustomization.yaml": overlay() for name in ("prod", "staging")}
    write(work, BASE | files)
    for number, replicas in enumerate((1, 9)):
        write(work, {"base/web.yaml": WEB.replace("replicas: 1", f"replicas: {replicas}")})
        subprocess.run([*git, "add", "--all"], cwd=work, check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", str(number)], cwd=work, check=True)
    write(work, {"base/web.yaml": WEB.replace("replicas: 1", "replicas: 100")})
    found = plan("overlays/prod", capsys, "--ref", "HEAD", "--base", "HEAD~1")
    assert pods(found) == 9
    assert found["atRest"]["before"]["nodes"] < found["atRest"]["after"]["nodes"]
    changes = [c for c in found["changes"] if c["name"] == "web"]
    assert [c["file"] for c in changes] == ["../../base/web.yaml"]


def test_equal_objects_count_once_and_different_ones_are_an_error(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = POOL + "---\n" + CLASS
    write(work, {"given/a/nodes.yaml": nodes, "given/b/nodes.yaml": nodes})
    assert init("given") == 0
    shutil.rmtree("fleet")
    write(work, {"given/b/nodes.yaml": nodes.replace("[m7i]", "[c7i]")})
    assert init("given") == 1
    printed = capsys.readouterr().err
    assert "a/nodes.yaml:1:1 and b/nodes.yaml:1:1" in printed
    assert "--prefer a" in printed
    assert init("given", "--prefer", "b") == 0
    requirement = taken()["NodePool general"]["spec"]["template"]["spec"]["requirements"][1]
    assert requirement["values"] == ["c7i"]


def test_objects_of_one_name_in_one_file_have_to_be_renamed(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = POOL.replace("m7i", "c7i")
    write(work, {"given/all.yaml": f"{POOL}---\n{other}---\n{CLASS}"})
    assert init("given") == 1
    printed = capsys.readouterr().err
    assert "rename or remove all of them except one" in printed
    assert "--prefer" not in printed


@pytest.mark.parametrize(
    ("others", "named"),
    [
        (("x/a.yaml", "x/b.yaml"), "x/a.yaml"),
        (("nodes.yaml", "x/b.yaml"), "x"),
        (("x/a.yaml", "x/new/b.yaml"), "x/new"),
        (("a.yaml", "x/old/b.yaml"), "a.yaml"),
    ],
)
def test_the_path_to_prefer_is_that_of_one_object_alone(
    others: tuple[str, str], named: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = POOL + "---\n" + CLASS
    changed = nodes.replace("[m7i]", "[c7i]")
    write(work, below("given", dict(zip(others, (nodes, changed), strict=True))))
    assert init("given") == 1
    assert f"--prefer {named}," in capsys.readouterr().err
    assert init("given", "--prefer", named) == 0


@pytest.mark.parametrize(
    ("pools", "classes", "named"),
    [
        (("a/pool.yaml", "b/pool.yaml"), ("b/class.yaml", "c/class.yaml"), ["b"]),
        (("a/pool.yaml", "b/pool.yaml"), ("c/class.yaml", "d/class.yaml"), ["a", "c"]),
        (
            ("x/pool-dev.yaml", "x/pool-prod.yaml", "x/pool.yaml"),
            ("x/class-a.yaml", "x/class-prod.yaml"),
            ["x/class-a.yaml", "x/pool-dev.yaml"],
        ),
        (("x/p-dev.yaml", "x/p-prod.yaml"), ("x/c-dev.yaml", "x/c-prod.yaml"),
         ["x/c-dev.yaml", "x/p-dev.yaml"]),
    ],
)  # fmt: skip
def test_the_paths_to_prefer_decide_all_conflicts_at_once(
    pools: tuple[str, ...], classes: tuple[str, ...], named: list[str],
    work: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    files = {path: POOL.replace("m7i", f"m{n + 5}i") for n, path in enumerate(pools)}
    files |= {
        path: CLASS.replace("role: nodes", f"role: nodes{n}") for n, path in enumerate(classes)
    }
    write(work, below("given", files))
    assert init("given") == 1
    words = [word for path in named for word in ("--prefer", path)]
    assert f"{' '.join(words)}, or pass" in capsys.readouterr().err
    assert init("given", *words) == 0


@needs_helm
def test_a_chart_that_fails_in_many_releases_is_one_line_with_their_commands(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    application = (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {{name: app-{n}}}\n"
        "spec: {{source: {{repoURL: x, path: charts/app, helm: {{releaseName: app-{n}}}}}}}\n"
    )
    chart = {"Chart.yaml": CHART["Chart.yaml"], "templates/web.yaml": '{{ fail "no team" }}\n'}
    apps = {f"apps/{n}.yaml": application.format(n=n) for n in range(5)}
    write(work, below("charts/app", chart) | apps | {"nodes.yaml": f"{POOL}---\n{CLASS}"})
    assert init(".") == 0
    printed = capsys.readouterr().out
    assert printed.count("no team") == 1
    line = next(line for line in printed.splitlines() if "more with this reason" in line)
    assert line.startswith("      and 4 more with this reason: `helm template app-1 charts/app`, ")


def test_the_report_shows_nodes_first_and_groups_the_rest(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {f"given/values-{n}.yaml": "replicas: 2\n" for n in range(31)}
    services = "---\n".join(
        f"apiVersion: v1\nkind: Service\nmetadata: {{name: s{n}}}\n" for n in range(12)
    )
    files = {"given/nodes.yaml": POOL + "---\n" + CLASS, "given/services.yaml": services}
    write(work, files | other)
    assert init("given") == 0
    printed = capsys.readouterr().out
    assert printed.index("NodePool general") < printed.index("Left out")
    assert "31 files that no plan depends on: values-0.yaml" in printed
    assert "12 objects that no plan depends on: Service (12)" in printed
    assert printed.count("values-") <= 4


def test_a_class_of_auto_mode_is_named_once_and_its_labels_are_mapped(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    auto = (
        "apiVersion: eks.amazonaws.com/v1\nkind: NodeClass\nmetadata: {name: default}\n"
        "spec: {role: r, subnetSelectorTerms: [{tags: {a: b}}],"
        " securityGroupSelectorTerms: [{tags: {a: b}}], ephemeralStorage: {size: 100Gi}}\n"
    )
    pool = POOL.replace("karpenter.k8s.aws", "eks.amazonaws.com").replace(
        "EC2NodeClass", "NodeClass"
    )
    write(work, {"given/a.yaml": f"{auto}---\n{pool}---\n{pool.replace('general', 'b')}"})
    (found,) = findings("given", capsys)
    assert (found["code"], found["severity"]) == ("auto-mode", "warning")
    assert "general" in found["message"]
    printed = json.dumps(plan("given", capsys)["diagnostics"])
    assert printed.count("are not supported") == 1
    assert "not found" not in printed
    assert init("given") == 0
    assert capsys.readouterr().out.count("are not supported") == 1
    node_class = taken()["EC2NodeClass default"]["spec"]
    assert node_class["blockDeviceMappings"][0]["ebs"]["volumeSize"] == "100Gi"
    keys = [
        r["key"] for r in taken()["NodePool general"]["spec"]["template"]["spec"]["requirements"]
    ]
    assert keys == ["karpenter.sh/capacity-type", "karpenter.k8s.aws/instance-family"]


@needs_kustomize
def test_kubectl_serves_where_kustomize_is_missing(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    (work.parent / "bin").mkdir()
    os.symlink(kubectl, work.parent / "bin" / "kubectl")
    monkeypatch.setenv("PATH", str(work.parent / "bin"))
    write(work, BASE)
    assert codes("base", capsys) == []


@needs_kustomize
@pytest.mark.parametrize("is_needed", [True, False])
def test_a_file_of_nodes_that_is_not_listed_counts_if_nothing_else_makes_nodes(
    is_needed: bool, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "given/apps/kustomization.yaml": "resources: [web.yaml]\n",
        "given/apps/web.yaml": WEB,
        "given/apps/nodes.yaml": POOL.replace("name: general", "name: unlisted") + "---\n" + CLASS,
    }
    if not is_needed:
        files["given/nodes.yaml"] = f"{POOL}---\n{CLASS}"
    write(work, files)
    assert init("given") == 0
    assert {n for n in taken() if n.startswith("NodePool")} == {
        "NodePool unlisted" if is_needed else "NodePool general"
    }
    assert ("it is taken over all the same" in capsys.readouterr().out) == is_needed


KARPENTER_VALUES = """\
settings:
  clusterName: {cluster}
  interruptionQueue: "${{queue}}"
  clusterCABundle: Q0E=
  reservedENIs: 1
  eksControlPlane: true
  featureGates: {{nodeRepair: true, staticCapacity: "{{{{ gate }}}}"}}
"""


def karpenter_chart(kind: str, cluster: str) -> str:
    """Return an object of Argo CD or Flux that installs Karpenter; ``kind`` is its field."""
    values = indent(KARPENTER_VALUES.format(cluster=cluster), " " * 8)
    if kind == "spec.values":
        return (
            "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\n"
            "metadata: {name: karpenter, namespace: kube-system}\nspec:\n"
            "  chart: {spec: {chart: karpenter, version: 1.14.2,"
            f" sourceRef: {{kind: HelmRepository, name: k}}}}}}\n  values:\n{values}"
        )
    return (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: karpenter}\n"
        "spec:\n  source:\n    repoURL: public.ecr.aws/karpenter\n    chart: karpenter\n"
        f"    targetRevision: 1.14.2\n    helm:\n      {kind}\n{values}"
    )


def stated() -> dict[str, Any]:
    """Return the settings of the new fleet."""
    (config,) = load_all(Path("fleet/reconciler.yaml").read_bytes())
    assert isinstance(config, dict)
    return config


@pytest.mark.parametrize("kind", ["valuesObject:", "values: |", "spec.values"])
def test_the_settings_in_values_of_karpenters_chart_are_taken_over(
    kind: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = karpenter_chart(kind, "blue")
    write(work, {"apps/karpenter.yaml": text, "nodes/all.yaml": f"{POOL}---\n{CLASS}"})
    assert main(["init", "fleet", "--from", ".", "--no-lock", "--ci", "none"]) == 0
    config = stated()
    assert (config["fleet"], config["clusterName"], config["karpenter"]) == ("blue", "blue", "1.14")
    assert config["featureGates"] == {"NodeRepair": True}
    assert (config["clusterCABundle"], config["reservedEnis"]) == ("Q0E=", 1)
    assert "interruptionQueue" not in config, "a placeholder"
    assert "karpenter runs Karpenter; its settings are read" in capsys.readouterr().out


def test_a_setting_of_several_installations_is_left_to_the_user(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apps = {f"{name}/k.yaml": karpenter_chart("spec.values", name) for name in ("blue", "green")}
    write(work, apps | {"nodes/all.yaml": f"{POOL}---\n{CLASS}"})
    words = ["init", "fleet", "--from", ".", "--no-lock", "--ci", "none"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "setting clusterName has several values: blue, green" in printed
    assert stated()["featureGates"] == {"NodeRepair": True}, "both have it"
    shutil.rmtree("fleet")
    assert main([*words, "--prefer", "green"]) == 0
    assert stated()["clusterName"] == "green"


def test_an_empty_kustomization_is_named_as_such(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"nodes/all.yaml": POOL + "---\n" + CLASS, "apps/kustomization.yaml": ""})
    (found,) = findings(".", capsys)
    assert found["message"].endswith("its pods are not planned: the kustomization is empty")
    assert found["file"] == "apps/kustomization.yaml"


@needs_helm
@pytest.mark.parametrize(
    ("name", "is_named"),
    [
        ("ci/test-values.yaml", True), ("values-prod.yaml", True), ("example.yaml", True),
        ("values.yaml", False), ("other.yaml", False),
    ],
)  # fmt: skip
def test_a_chart_that_needs_values_names_a_file_with_some(
    name: str, is_named: bool, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = f"{{{{- if .Values.on }}}}\n{POOL}---\n{CLASS}{{{{- end }}}}\n"
    chart = {"Chart.yaml": CHART["Chart.yaml"], "templates/nodes.yaml": nodes, name: "off: true\n"}
    write(work, below("charts/nodes", chart))
    both = [f for f in findings(".", capsys) if f["code"] in ("empty-chart", "empty-fleet")]
    named = f"charts/nodes/{name}" if is_named else "FILE"
    assert len(both) == 2
    for found in both:  # a plan shows only the error
        assert f"init --from charts/nodes --values {named}`" in found["hint"]


@needs_helm
def test_values_that_a_chart_prints_and_does_not_have_are_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Helm prints nothing in their place, and a rule of the API then names only the field."""
    printed = CLASS.replace("role: nodes", "role: {{ .Values.iam.role | quote }}")
    assert printed != CLASS
    tested = "# {{ .Values.team }} {{- if .Values.note }} {{ .Values.note }} {{- end }}\n"
    nodes = f"{tested}{POOL}---\n{printed}"
    chart = {"Chart.yaml": CHART["Chart.yaml"], "templates/nodes.yaml": nodes}
    write(work, {**chart, "values.yaml": "team: a\niam: {}\n"})
    (found,) = [f for f in findings(".", capsys) if f["code"] == "unset-values"]
    assert found["message"] == "the chart has no value for iam.role, which its nodes need"
    assert main(["plan", "."]) == 1
    assert f"; {found['message']}: {found['hint']}" in capsys.readouterr().err
    write(work, {**chart, "values.yaml": "team: a\niam: {role: nodes}\n"})
    assert not [f for f in findings(".", capsys) if f["code"] == "unset-values"]


DEFINITION = (
    "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n"
    "metadata: {name: widgets.example.com}\nspec:\n  group: example.com\n"
    "  names: {kind: Widget, plural: widgets}\n"
)


@needs_kustomize
@pytest.mark.parametrize(
    "patch",
    [
        pytest.param("", id="no patch"),
        pytest.param(
            "patches:\n- target: {kind: CustomResourceDefinition}\n"
            "  patch: |-\n    - {op: replace, path: /spec/names/plural, value: others}\n",
            id="a patch of the definition",
        ),
    ],
)
def test_a_kustomization_with_definitions_is_rendered(
    patch: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = BASE | {"base/definition.yaml": DEFINITION}
    files["base/kustomization.yaml"] = (
        f"resources: [pool.yaml, class.yaml, web.yaml, definition.yaml]\n{patch}"
    )
    write(work, files)
    assert pods(plan(".", capsys)) == 1


@needs_helm
@pytest.mark.parametrize("name", ["deploy/helmfile.yaml.gotmpl", "helmfile.yaml"])
def test_a_helmfile_around_a_chart_is_named(
    name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, below("deploy/charts/nodes", CHART) | {name: "releases: []\n"})
    (found,) = [f for f in findings(".", capsys) if f["code"] == "helmfile"]
    assert (found["file"], found["severity"]) == (name, "warning")
    assert "helmfile template" in found["hint"]


def test_a_helmfile_without_a_chart_is_not_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(work, {"helmfile.yaml": "releases: []\n", "nodes.yaml": POOL + "---\n" + CLASS})
    assert "helmfile" not in codes(".", capsys)
