"""The guides: every command in a `console` block runs, in order, as it is printed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.cli.parser.commandline import COMMANDS, read
from reconciler.model.errors import UsageError
from tests.cli.forgeapi import ForgeImitation, serving
from tests.docs.environment import make_environment
from tests.repositories import IDENTITY, commit_all, git, init

ROOT = Path(__file__).resolve().parents[2]
TOOLS = {"how-to/repositories": ("kustomize", "helm")}
"""What the commands of a guide start, by guide."""
GUIDES = [
    "advice",
    "cost-of-constraints",
    "how-to/budgets-and-windows",
    "how-to/gpus",
    "how-to/keep-karpenter",
    "how-to/migrate-from-cluster-autoscaler",
    "how-to/migrate-from-veneer",
    "how-to/production",
    "how-to/repositories",
    "how-to/savings-plans",
    "migrate-from-karpenter",
    "pull-requests",
    "tutorial",
]
NOT_RUN = {
    "backtesting": "needs a recorded week, a Prometheus, or logs of EKS",
}
"""Pages with commands that a reader can only run elsewhere, with the reason."""
DEMO = ("requirements/embedded.lock",)
"""What the first command of the README installs, for the pages that name nothing else."""
INSTALLED = {
    "pull-requests": ("requirements/action.lock",),
    "tutorial": (*DEMO, "requirements/action.lock"),
}
"""What a page installs, by guide."""
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "decisions" not in path.parts
)
_TEXT = re.compile(r"^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def commands(guide: str) -> list[str]:
    text = (ROOT / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    lines = [line for block in _BLOCK.findall(text) for line in block.splitlines()]
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, with Karpenter's examples beside it where a guide starts from them."""
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_REGION", "AWS_PROFILE", "KUBECONFIG", "GITHUB_EVENT_PATH"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    fixtures = ROOT / "tests" / "fixtures"
    (folder / "karpenter").mkdir()
    shutil.copy(fixtures / "karpenter-examples/v1/general-purpose.yaml", folder / "karpenter")
    shutil.copytree(fixtures / "sources", folder, dirs_exist_ok=True)
    shutil.copytree(ROOT / "examples", folder / "examples")
    monkeypatch.chdir(folder)
    return folder


def run(line: str, folder: Path) -> None:
    words = shlex.split(line)
    if words[0] == "reconciler":
        assert main(words[1:]) == 0, line
    elif words[0] == "git":
        git(folder, *words[1:])
    else:
        subprocess.run(words, cwd=folder, check=True)


@pytest.fixture
def forge(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgeImitation]:
    """The service that comments are posted to."""
    forge = ForgeImitation()
    with serving(forge) as url:
        monkeypatch.setenv("GITHUB_API_URL", url)
        monkeypatch.setenv("GITHUB_TOKEN", forge.token)
        yield forge


def prepare_guide(guide: str, folder: Path) -> None:
    """Bring the folder to where a guide begins, or skip it without the tools that it starts."""
    for tool in TOOLS.get(guide, ()):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    if guide == "pull-requests":
        shutil.copytree(ROOT / "examples" / "web", folder / "fleet")
        init(folder)
        commit_all(folder)
        git(folder, "switch", "--quiet", "--create", "change")
        (folder / "fleet" / "README.md").write_text("changed\n")
        commit_all(folder)


@pytest.mark.parametrize(
    "guide",
    [pytest.param(g, marks=pytest.mark.exhaustive) if g == "tutorial" else g for g in GUIDES],
)
def test_every_command_of_a_guide_runs(guide: str, prepared: Path, forge: ForgeImitation) -> None:
    prepare_guide(guide, prepared)
    lines = commands(guide)
    assert lines
    for line in lines:
        run(line, prepared)
    if guide == "pull-requests":
        assert len(forge.comments) == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("guide", GUIDES)
def test_every_command_runs_in_the_environment_that_its_page_installs(
    guide: str, prepared: Path, forge: ForgeImitation, tmp_path: Path
) -> None:
    """A reader has a shell, the locked distributions and no others; what is printed is shown."""
    prepare_guide(guide, prepared)
    programs = make_environment(tmp_path / "environment", INSTALLED.get(guide, DEMO))
    environment = {**os.environ, **IDENTITY, "PATH": f"{programs}:{os.environ['PATH']}"}
    environment.pop("PYTHONPATH", None)
    printed = ""
    for line in commands(guide):
        done = subprocess.run(
            line,
            shell=True,
            cwd=prepared,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"$ {line}\n{done.stdout}{done.stderr}"
        printed += done.stdout
    assert [line for line in excerpts(guide) if line not in printed.splitlines()] == []


def excerpts(guide: str) -> list[str]:
    """Return the lines of output that a guide shows, ``...`` standing for lines left out."""
    text = (ROOT / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    lines = [line for block in _TEXT.findall(text) for line in block.splitlines()]
    return [line for line in lines if line not in {"", "..."}]


def test_every_page_with_commands_to_run_is_run() -> None:
    found = [
        page.removeprefix("docs/").removesuffix(".md")
        for page in PAGES
        if _BLOCK.search((ROOT / page).read_text(encoding="utf-8"))
    ]
    assert sorted(found) == sorted([*GUIDES, *NOT_RUN])


def test_an_environment_has_what_is_locked_and_nothing_else(tmp_path: Path) -> None:
    programs = make_environment(tmp_path / "environment", DEMO)
    code = (
        "import importlib.util as u; print([bool(u.find_spec(n)) for n in ('moto', 'celpy', "
        "'pytest', 'reconciler')])"
    )
    done = subprocess.run(
        [programs / "python", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[True, False, False, True]"


@pytest.mark.parametrize("guide", GUIDES)
def test_a_daemon_is_only_started_where_the_guide_has_committed_its_fleet(guide: str) -> None:
    """Blocks that never end are not run here, and `run` refuses a repository without a commit."""
    text = (ROOT / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    before, daemon, _ = text.partition("\nreconciler run fleet --simulated")
    assert not daemon or "$ git commit" in before


def shown(page: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the words of each command line of ours on a page, and whether it is complete.

    In a sentence, the name of a command may be without its arguments.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    for block, inline in _CODE.findall(text):
        lines = block.replace("\\\n", " ").splitlines() if block else [inline]
        for line in lines:
            command = re.split(r" [|&]|&&|>", line.strip().removeprefix("$ "))[0]
            if command.startswith("reconciler "):
                yield shlex.split(command, comments=True)[1:], bool(block)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_a_page_is_accepted_by_the_parser(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text("{}")  # what `apply` tells from a folder
    refused = []
    for words, is_complete in shown(page):
        if words[0] not in {*COMMANDS, "help", "--version", "COMMAND"}:
            refused.append(" ".join(words))
        elif is_complete and words[0] != "COMMAND":
            try:
                read(words, COMMANDS)
            except UsageError as error:
                refused.append(f"{' '.join(words)}: {error}")
    assert refused == []


@pytest.mark.parametrize(
    "guide",
    [pytest.param(g, marks=pytest.mark.exhaustive) if g == "tutorial" else g for g in GUIDES],
)
def test_every_relative_link_in_a_guide_points_to_a_file(guide: str) -> None:
    page = ROOT / "docs" / f"{guide}.md"
    links = [t for t in _LINK.findall(page.read_text(encoding="utf-8")) if "://" not in t]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_inputs_and_outputs_of_the_action_are_documented() -> None:
    from ruamel.yaml import YAML

    page = (ROOT / "docs" / "pull-requests.md").read_text(encoding="utf-8")
    action = YAML(typ="safe").load(ROOT / "action.yml")
    names = [*action["inputs"], *action["outputs"]]
    assert [name for name in names if f"`{name}`" not in page] == []
