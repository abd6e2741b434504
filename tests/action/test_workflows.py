"""Every workflow and template: no expression in a script, and every part named by its content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from ruamel.yaml import YAML

from reconciler.initialization.pipelines import ACTION, CI, ci_files
from tests.action.runner import ROOT

FILES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for place in ("action.yml", ".github/**/*.y*ml", "templates/**/*.y*ml", "examples/ci/**/*.y*ml")
    for path in sorted(ROOT.glob(place))
} | {
    f"init {ci} {file.path}": file.content
    for ci in (CI.GITHUB, CI.GITLAB)
    for file in ci_files(ci, 'fleet"; echo ${{ github.token }}', "v0.1.0")
}
SCRIPTS = {"run", "script", "before_script", "after_script", "entrypoint", "args", "command"}
COMMENTING = {"checks", "pull-requests"}
"""The rights that all jobs of a workflow may have: to report on a pull request."""

BY_COMMIT = re.compile(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}")
BY_DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")


def problems(text: str) -> list[str]:
    """Return what is wrong with a workflow, an action or a template."""
    return [problem for doc in YAML(typ="safe").load_all(text) for problem in _problems(doc, ())]


def _problems(node: Any, path: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _problems(value, (*path, str(key)))
    elif isinstance(node, list):
        for value in node:
            yield from _problems(value, path)
    elif isinstance(node, str) and path and "inputs" not in path:
        yield from _problems_of_text(node, path)


def _problems_of_text(text: str, path: tuple[str, ...]) -> Iterator[str]:
    key = path[-1]
    is_image = key in {"image", "container"} or path[-2:] == ("image", "name")
    if key in SCRIPTS and re.search(r"\$\{\{|\$\[\[|\$%", text):
        yield f"{'.'.join(path)}: an expression in a script"
    if key in SCRIPTS and re.search(r"\b(curl|wget)\b|@latest|releases/latest", text):
        yield f"{'.'.join(path)}: a download that is not checked, or moves"
    if key == "restore-keys":
        yield "restore-keys takes a cache that another branch or other files filled"
    if path[:1] == ("permissions",) and text == "write" and key not in COMMENTING:
        yield f"{'.'.join(path)}: every job may write"
    if text == "write-all" or (key == "secrets" and text == "inherit"):
        yield f"{'.'.join(path)}: all rights or secrets"
    if key == "uses" and not _is_pinned_action(text):
        yield f"{text}: not pinned by commit"
    # the component checks the form of its input
    if is_image and text != "$[[ inputs.image ]]" and not BY_DIGEST.fullmatch(text):
        yield f"{text}: not named by digest"
    if key == "runs-on" and "latest" in text:
        yield f"{text}: a moving runner"
    if path[:1] == ("on",) and "pull_request_target" in (*path, text):
        yield "pull_request_target runs the files of strangers with the token of the repository"


def _is_pinned_action(action: str) -> bool:
    return bool(BY_COMMIT.fullmatch(action) or re.fullmatch(rf"{ACTION}@v\d+\.\d+\.\d+", action))


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_unpinned_and_no_expression_is_in_a_script(name: str) -> None:
    assert problems(FILES[name]) == []


@pytest.mark.parametrize(
    "text",
    [
        "jobs: {a: {steps: [{run: 'echo ${{ github.head_ref }}'}]}}",
        "a: {script: ['reconciler ci $[[ inputs.fleets ]]']}",
        "a: {image: 'ghcr.io/a/b:latest'}",
        "a: {image: {name: 'ghcr.io/a/b:1.2'}}",
        "jobs: {a: {container: 'python:3'}}",
        "jobs: {a: {services: {db: {image: 'postgres:16'}}}}",
        "jobs: {a: {steps: [{uses: actions/checkout@v4}]}}",
        "jobs: {a: {steps: [{uses: 'docker://alpine:3'}]}}",
        "jobs: {a: {runs-on: ubuntu-latest}}",
        "'on': [pull_request_target]",
        "'on': {pull_request_target: {types: ['opened']}}",
        "jobs: {a: {steps: [{run: 'curl -sSL https://get.helm.sh/helm.tgz | tar xz'}]}}",
        "jobs: {a: {steps: [{run: 'go install sigs.k8s.io/kustomize@latest'}]}}",
        "jobs: {a: {steps: [{with: {path: x, restore-keys: 'x-'}}]}}",
        "permissions: {contents: write}",
        "permissions: write-all",
        "jobs: {a: {permissions: write-all}}",
        "jobs: {a: {secrets: inherit}}",
    ],
)
def test_a_fault_is_found(text: str) -> None:
    assert len(problems(text)) == 1


def test_the_image_of_the_gitlab_component_is_checked_to_have_a_digest() -> None:
    spec, job = YAML(typ="safe").load_all(FILES["templates/plan.yml"])
    image = spec["spec"]["inputs"]["image"]
    form = re.compile(image["regex"])
    assert form.fullmatch(image["default"])
    assert form.fullmatch("ghcr.io/reconciler/reconciler@sha256:" + "0" * 64)
    for moving in ("ghcr.io/reconciler/reconciler:latest", "a@sha256:0", "$OTHER", ""):
        assert not form.fullmatch(moving)
    variables = job["reconciler-plan"]["variables"]
    inputs = {value for value in variables.values() if "$[[" in value}
    names = ("fleets", "snapshot", "snapshot-max-age", "fail-on", "check")
    assert inputs == {f"$[[ inputs.{n} ]]" for n in names}


@pytest.mark.parametrize("name", [n for n in FILES if "workflows" in n or n.endswith(".yml")])
def test_a_checkout_keeps_no_token(name: str) -> None:
    (document, *_) = YAML(typ="safe").load_all(FILES[name])
    for job in (document.get("jobs") or {}).values():
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False


def test_python_imports_nothing_from_the_checkout_in_any_template() -> None:
    action = YAML(typ="safe").load(FILES["action.yml"])
    steps = [s for s in action["runs"]["steps"] if re.search("python|reconciler ", str(s))]
    assert len(steps) == 4
    assert all(step["env"]["PYTHONSAFEPATH"] == "1" for step in steps)
    _, job = YAML(typ="safe").load_all(FILES["templates/plan.yml"])
    assert job["reconciler-plan"]["variables"]["PYTHONSAFEPATH"] == "1"
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "PYTHONSAFEPATH=1" in image
    assert re.search(r"sed -i '1s/\$/ -IBu/' /opt/reconciler/bin/reconciler", image)


def test_plans_of_gitlab_are_not_written_into_the_checkout() -> None:
    _, job = YAML(typ="safe").load_all(FILES["templates/plan.yml"])
    script = job["reconciler-plan"]["script"]
    assert any("--out" in line for line in script)
    assert not any("--out reconciler-plans" in line for line in script)
    assert script.index('rm -rf reconciler-plans && cp -R "$out" reconciler-plans') > 0
