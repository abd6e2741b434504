"""Attacks by which a small repository asks for very much when its sources are rendered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.cli.sourcefolders import BASE, CLASS, POOL, write
from tests.hostile.threats import Threat, attack

WORK = "reconciler.desired.sources.work"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is no repository, and no tool that could render it."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    return folder


def messages(
    capsys: pytest.CaptureFixture[str], files: Mapping[str, str], code: str = "too-large"
) -> list[str]:
    """Return the messages of one kind about a fleet."""
    write(Path.cwd(), files)
    main(["validate", ".", "-o", "json"])
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["diagnostics"]
    return [finding["message"] for finding in found if finding["code"] == code]


def application_set(generators: object, path: str) -> str:
    """Return an ApplicationSet whose Applications have that path."""
    return (
        "apiVersion: argoproj.io/v1alpha1\nkind: ApplicationSet\nmetadata: {name: all}\n"
        f"spec:\n  generators: {json.dumps(generators)}\n  template:\n    metadata: {{name: x}}\n"
        f"    spec: {{source: {{repoURL: x, path: {json.dumps(path)}}}}}\n"
    )


def doubling(levels: int, reference: str = "resources") -> dict[str, str]:
    """Return kustomizations of which each names both of the next level."""
    files = {"kustomization.yaml": f"{reference}: [a0, b0]\n"}
    for level in range(levels):
        below = f"../a{level + 1}, ../b{level + 1}" if level < levels - 1 else "../base"
        for name in "ab":
            text = f"namePrefix: {name}-\n{reference}: [{below}]\n"
            files[f"{name}{level}/kustomization.yaml"] = text
    return files


@attack(Threat.RENDERING, "bases that each include the next two, which doubles with each level")
@pytest.mark.parametrize("reference", ["resources", "components", "bases"])
def test_bases_that_double_are_counted_as_often_as_they_are_loaded(
    reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = BASE | doubling(40, reference)
    assert messages(capsys, files) == [
        "the source is too large: more than 2,000 kustomizations, with repetitions"
    ]


@attack(Threat.RENDERING, "a file of some size in a base that is loaded hundreds of times")
def test_the_size_of_a_base_counts_as_often_as_it_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    large = f"{POOL}# {'x' * 100_000}\n"
    files = BASE | doubling(9) | {"base/pool.yaml": large}
    assert messages(capsys, files) == [
        "the source is too large: more than 32 MiB, with repetitions"
    ]


@attack(Threat.RENDERING, "components of an overlay that are listed thousands of times")
def test_components_of_an_overlay_count_as_often_as_they_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    application = {
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": {"name": "a"},
        "spec": {
            "source": {"repoURL": "x", "path": "base", "kustomize": {"components": ["../c"] * 2500}}
        },
    }  # fmt: skip
    component = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
    files = BASE | {"app.json": json.dumps(application), "c/kustomization.yaml": component}
    assert messages(capsys, files) == [
        "the source is too large: more than 2,000 kustomizations, with repetitions"
    ]


GIT = {"git": {"files": [{"path": "**/x{{a}}"}]}}
ELEMENTS = {"list": {"elements": [{"a": str(number)} for number in range(50)]}}
STEPS: dict[str, dict[str, str]] = {
    "a parameter that stands in a template very often": {
        "all.yaml": f"{POOL}---\n{CLASS}",
        "set.yaml": application_set(
            [{"list": {"elements": [{"a": "x" * 20_000}]}}], "{{a}}" * 1_000
        ),
    },
    "parameters that each contain the one before twice": {
        "all.yaml": f"{POOL}---\n{CLASS}",
        "set.yaml": application_set(
            [{"matrix": {"generators": [
                {"list": {"elements": [{f"a{n + 1}": f"{{{{a{n}}}}}" * 2}]}} if n else
                {"list": {"elements": [{"a1": "x"}]}} for n in range(22)
            ]}}],
            "x",
        ),
    },
    "a generator that searches the repository for each element of another": {
        "all.yaml": f"{POOL}---\n{CLASS}",
        "set.yaml": application_set([{"matrix": {"generators": [ELEMENTS, GIT]}}], "{{a}}"),
        **{f"d/f{number}": "" for number in range(500)},
    },
    "kustomizations of which each includes all others after it": {
        **{f"k{n}/kustomization.yaml": f"resources: [../k{n + 1}]\n" for n in range(99)},
        "k99/kustomization.yaml": "resources: [all.yaml]\n",
        "k99/all.yaml": f"{POOL}---\n{CLASS}",
    },
}  # fmt: skip


@attack(Threat.RENDERING, "objects and kustomizations that refer to each other in very many ways")
@pytest.mark.parametrize("name", STEPS)
def test_finding_the_files_of_all_sources_has_a_limit_of_steps(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{WORK}.STEPS_MAX", 50_000)
    found = messages(capsys, STEPS[name])
    assert found
    for message in found:
        assert message.endswith("finding its files takes more than 50,000 steps")


def directory(**patterns: str) -> dict[str, str]:
    """Return a fleet of which an Application reads the files that patterns choose."""
    application = {
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": {"name": "a"},
        "spec": {"source": {"repoURL": "x", "path": "base", "directory": patterns}},
    }  # fmt: skip
    nodes = {f"base/{number}.yaml": f"{POOL}---\n{CLASS}" for number in range(50)}
    return nodes | {"app.json": json.dumps(application)}


PATTERNS = {
    "choices": f"{{{',' * 500_000}}}{'x' * 500_000}",
    "brackets": "[" * 500_000,
    "wildcards": "*a" * 250_000,
}


@attack(Threat.RENDERING, "a pattern for files of a megabyte, or of half a million choices")
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("field", ["include", "exclude", "generator"])
def test_the_length_of_a_pattern_for_files_has_a_limit(
    name: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    generators = [{"git": {"files": [{"path": PATTERNS[name]}]}}]
    made = {"set.yaml": application_set(generators, "x"), "all.yaml": f"{POOL}---\n{CLASS}"}
    files = made if field == "generator" else directory(**{field: PATTERNS[name]})
    assert messages(capsys, files) == [
        "the source is too large: a pattern of more than 1,000 characters"
    ]


@attack(Threat.RENDERING, "patterns for files that each take long, for very many files")
@pytest.mark.parametrize("pattern", ["[" * 1_000, f"{{{'a,' * 400}}}{'*a' * 90}"])
@pytest.mark.parametrize("field", ["include", "exclude"])
def test_matching_files_is_counted_with_the_length_of_the_patterns(
    pattern: str, field: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{WORK}.STEPS_MAX", 10_000)
    found = messages(capsys, directory(**{field: pattern}))
    assert found == ["the source is too large: finding its files takes more than 10,000 steps"]


@attack(Threat.RENDERING, "a kustomization that names one patch a hundred thousand times")
def test_the_references_of_a_kustomization_are_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.desired.sources.kustomization.REFERENCES_MAX", 50)
    text = f"resources: [base]\npatches: [{'{path: p.yaml}, ' * 51}]\n"
    files = BASE | {"kustomization.yaml": text, "p.yaml": POOL}
    assert messages(capsys, files) == [
        "the source is too large: more than 50 references in a kustomization"
    ]


@attack(Threat.RENDERING, "dependencies of a chart by the thousands, or that multiply")
@pytest.mark.parametrize("is_nested", [True, False])
def test_the_dependencies_of_a_chart_are_counted(
    is_nested: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.desired.sources.chart.DEPENDENCIES_MAX", 30)
    first = 6 if is_nested else 31
    charts = {
        folder: "name: a\nversion: 0.1.0\ndependencies:\n"
        + "".join(f"- {{name: d{n}, repository: 'file://../{other}'}}\n" for n in range(count))
        for folder, other, count in (
            ("a", "b", first),
            ("b", "c", 6),
            ("c", "", 0),
        )
    }
    files = {f"{folder}/Chart.yaml": text for folder, text in charts.items()}
    listed = "sources: [{chart: a}]\n"
    assert messages(capsys, files | {"reconciler.yaml": listed, "all.yaml": POOL}) == [
        "the source is too large: more than 30 dependencies"
    ]


@attack(Threat.RENDERING, "links of a folder to itself, which multiply with each level")
def test_links_that_multiply_end_at_a_limit(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "d").mkdir()
    for name in "ab":
        (work / "d" / name).symlink_to(".")
    generators = [{"git": {"files": [{"path": "**/x"}]}}]
    assert messages(capsys, {"set.yaml": application_set(generators, "x")})


@attack(Threat.RENDERING, "a variable of Flux that stands in a text very often")
def test_a_text_with_its_variables_replaced_has_a_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.desired.sources.substitution.TEXT_MAX", 2**20)
    flux = {
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
        "metadata": {"name": "a", "namespace": "b"},
        "spec": {
            "path": "./k", "sourceRef": {"kind": "GitRepository", "name": "x"},
            "postBuild": {"substitute": {"a": "x" * 1_000}},
        },
    }  # fmt: skip
    files = {"flux.json": json.dumps(flux), "k/a.yaml": POOL.replace("general", "${a}" * 2_000)}
    assert messages(capsys, files) == [
        "the source is too large: more than 1 MiB with its variables replaced"
    ]


@attack(Threat.RENDERING, "hundreds of objects of Argo CD that each make thousands of files again")
def test_what_all_sources_make_has_the_limits_of_a_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{WORK}.FILES_MAX", 100)
    application = (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: a%d}\n"
        "spec: {destination: {namespace: n%d}, source: {repoURL: x, path: w}}\n"
    )
    files = {f"w/{number}.yaml": f"{POOL}---\n{CLASS}" for number in range(30)}
    files["apps.yaml"] = "---\n".join(application % (number, number) for number in range(40))
    assert messages(capsys, files) == [
        "the source is too large: all sources together make more than 100 files or 64 MiB"
    ]


@attack(Threat.RENDERING, "thousands of kustomizations or charts, each of which is rendered")
@pytest.mark.parametrize("name", ["kustomization.yaml", "Chart.yaml"])
def test_the_sources_of_a_fleet_are_counted(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{WORK}.SOURCES_MAX", 5)
    content = {"kustomization.yaml": "resources: [all.yaml]\n", "Chart.yaml": "name: a\n"}[name]
    files = {f"k{number}/{name}": content for number in range(9)}
    files |= {f"k{number}/all.yaml": f"{POOL}---\n{CLASS}" for number in range(9)}
    assert messages(capsys, files) == ["the source is too large: more than 5 sources"]


@attack(Threat.RENDERING, "a number of thousands of digits, or of another script, in a template")
@pytest.mark.parametrize("digits", ["9" * 5_000, "²", "٣"])
def test_an_odd_number_of_an_application_is_not_an_internal_error(
    digits: str, capsys: pytest.CaptureFixture[str]
) -> None:
    application = {
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Application", "metadata": {"name": "a"},
        "spec": {
            "source": {
                "repoURL": "x", "path": "base",
                "kustomize": {"replicas": [{"name": "web", "count": digits}]},
            }
        },
    }  # fmt: skip
    elements = [{"list": {"elements": [{"a": "x/y"}]}}]
    text = f"{{{{index .a {digits}}}}}{{{{a[{digits}]}}}}"
    files = {"app.json": json.dumps(application), "set.yaml": application_set(elements, text)}
    assert messages(capsys, BASE | files, "missing-tool")
