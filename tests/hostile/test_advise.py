"""Attacks on ``reconciler advise`` where it writes: into a folder, and as a commit.

Each prepares a repository as a stranger could, lets a proposal be written or committed, and asserts
that no program ran and that nothing outside the folder was written.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.advisedfleet import instance_type, words, write_catalog, write_fleet
from tests.hostile.test_git import Canary
from tests.hostile.threats import Threat, attack
from tests.repositories import commit_all, git

Capture = pytest.CaptureFixture[str]
CONFIGS = {
    "clean filter": {"filter.x.clean": "{program}", "filter.x.required": "true"},
    "process filter": {"filter.x.process": "{program}"},
    "fsmonitor": {"core.fsmonitor": "{program}", "core.fsmonitorHookVersion": "1"},
    "hooks folder": {"core.hooksPath": "{folder}"},
    "editor": {"core.editor": "{program}", "commit.verbose": "true"},
    "gpg program": {"gpg.program": "{program}", "commit.gpgSign": "true"},
    "alias of commit-tree": {"alias.commit-tree": "!{program}"},
}
HOOKS = (
    "pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-index-change",
    "reference-transaction", "post-checkout",
)  # fmt: skip


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ada@example.com")
    write_fleet(tmp_path / "shop")
    return tmp_path / "shop"


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    (tmp_path / "evil").mkdir()
    return Canary(tmp_path / "evil")


def committed(fleet: Path, capsys: Capture) -> None:
    """Commit the best proposal and assert that the commit exists."""
    arguments = words(fleet, "--new-nodes", "--commit", "cheaper")
    assert main(["advise", *arguments]) == 0, capsys.readouterr().err


def is_there(fleet: Path) -> bool:
    files = git(fleet, "-c", "core.hooksPath=/dev/null", "ls-tree", "--name-only", "cheaper")
    return "pool.yaml" in files


@attack(Threat.GIT, "a program named in .git/config, when advice is committed")
@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_a_program_named_in_the_git_config_does_not_run(
    fleet: Path, canary: Canary, capsys: Capture, settings: dict[str, str]
) -> None:
    (fleet / ".gitattributes").write_text("*.yaml filter=x\n")
    commit_all(fleet)
    for hook in HOOKS:
        (canary.program.parent / hook).symlink_to(canary.program)
    for key, value in settings.items():
        git(
            fleet, "config", key,
            value.format(program=canary.program, folder=canary.program.parent),
        )  # fmt: skip
    committed(fleet, capsys)
    assert not canary.ran
    assert is_there(fleet)


@attack(Threat.GIT, "a hook in .git/hooks, when advice is committed")
def test_a_hook_does_not_run(fleet: Path, canary: Canary, capsys: Capture) -> None:
    for hook in HOOKS:
        path = fleet / ".git" / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(canary.program.read_bytes())
        path.chmod(0o755)
    committed(fleet, capsys)
    assert not canary.ran
    assert is_there(fleet)


@attack(Threat.GIT, "a symbolic link in place of the settings file that advice creates")
def test_nothing_is_written_through_a_symbolic_link(fleet: Path, capsys: Capture) -> None:
    outside = fleet.parent / "outside.yaml"
    (fleet / "reconciler.yaml").unlink()
    (fleet / "reconciler.yaml").symlink_to(outside)
    commit_all(fleet)
    write_catalog(fleet, instance_type("m7i", 0.10), instance_type("m7i", 1.50, "4xlarge", 16))
    pick = ("--new-nodes", "--write", "--auto-approve", "--pick", "packing-cheapest")
    assert main(["advise", *words(fleet, *pick)]) != 0
    capsys.readouterr()
    assert not outside.exists()
    assert (fleet / "reconciler.yaml").is_symlink()


@attack(Threat.OUTPUT, "a family of a catalog that begins lines of a report and of a commit")
def test_a_name_of_a_catalog_begins_no_line(fleet: Path, capsys: Capture) -> None:
    """Guards: ``render_text``, and the check of the files that a candidate would write."""
    line = "Signed-off-by: Eve <eve@example.com>"
    write_catalog(fleet, instance_type("m7i", 0.3), instance_type(f"m8i\n\n{line}", 0.02))
    assert main(["advise", *words(fleet, "--new-nodes", "--commit", "cheaper")]) == 0
    message = git(fleet, "log", "-1", "--format=%B", "cheaper")
    lines = [*capsys.readouterr().out.splitlines(), *message.splitlines()]
    assert any(line in each for each in lines)
    assert not [each for each in lines if each.startswith(line)]
