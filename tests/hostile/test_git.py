"""Attacks that make git run a program, or disclose another repository.

Each prepares a repository as a stranger could, runs a command on it, and asserts that the program
did not run and that the command still gave the right answer.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler import exitcode
from reconciler.adapters.git.command import TIMEOUT_S
from reconciler.adapters.git.directory import ALTERNATES_VARIABLE
from reconciler.adapters.git.revision import working_revision
from reconciler.adapters.git.source import AtRef, Remote, WorkingTree, head_of, read
from reconciler.adapters.git.watch import watch
from reconciler.cli.main import main
from reconciler.model.errors import ReconcilerError, UnreadableError
from tests.adapters.git.conftest import Repository
from tests.hostile.threats import Threat, attack

POOL = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
      - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@latest}]
  subnetSelectorTerms: [{tags: {a: b}}]
  securityGroupSelectorTerms: [{tags: {a: b}}]
"""


class Canary:
    """A program that leaves a file behind when it runs."""

    def __init__(self, folder: Path) -> None:
        self.sign = folder / "canary-ran"
        self.program = folder / "canary"
        self.program.write_text(f"#!/bin/sh\ntouch '{self.sign}'\ncat\n")
        self.program.chmod(0o755)

    @property
    def ran(self) -> bool:
        return self.sign.exists()


@pytest.fixture
def canary(tmp_path: Path) -> Canary:
    (tmp_path / "evil").mkdir()
    return Canary(tmp_path / "evil")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    return Repository(tmp_path / "shop")


def planned(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """Run ``plan`` on a folder and return the revision that it shows."""
    line = ["plan", str(folder), "-o", "json", "--now", "2026-03-02T09:00:00Z", *words]
    assert main(line) == 0, capsys.readouterr().err
    found: dict[str, object] = json.loads(capsys.readouterr().out)["revision"]
    return found


def every_command(
    repository: Repository, head: str, capsys: pytest.CaptureFixture[str], *, dirty: bool = False
) -> None:
    """Run the commands of a pull request, and assert that each gives the right answer."""
    folder = repository.path
    assert main(["validate", str(folder)]) == 0, capsys.readouterr()
    capsys.readouterr()
    assert planned(folder, capsys)["head"] == head
    assert planned(folder, capsys)["dirty"] is dirty
    assert planned(folder, capsys, "--base", "HEAD")["base"] == head
    assert planned(folder, capsys, "--ref", "HEAD")["head"] == head
    line = ["simulate", str(folder), "--now", "2026-03-02T09:00:00Z", "-o", "json"]
    assert main(line) == 0, capsys.readouterr().err
    capsys.readouterr()


# -- programs that the settings of a repository name ----------------------------------------------

CONFIGS = {
    "clean filter": {"filter.x.clean": "{program}", "filter.x.required": "true"},
    "smudge filter": {"filter.x.smudge": "{program}", "filter.x.clean": "{program}"},
    "process filter": {"filter.x.process": "{program}"},
    "fsmonitor": {"core.fsmonitor": "{program}", "core.fsmonitorHookVersion": "1"},
    "hooks folder": {"core.hooksPath": "{folder}"},
    "textconv": {"diff.x.textconv": "{program}"},
    "diff driver": {"diff.x.command": "{program}"},
    "external diff": {"diff.external": "{program}"},
    "pager": {"core.pager": "{program}", "pager.status": "true", "pager.config": "{program}"},
    "editor": {"core.editor": "{program}", "sequence.editor": "{program}"},
    "ssh command": {"core.sshCommand": "{program}"},
    "git proxy": {"core.gitProxy": "{program}"},
    "askpass": {"core.askPass": "{program}"},
    "credential helper": {"credential.helper": "!{program}"},
    "pack-objects hook": {"uploadpack.packObjectsHook": "{program}"},
    "upload-pack of a remote": {"remote.origin.uploadpack": "{program}"},
    "insteadOf": {"url.ext::{program} .insteadOf": "/"},
    "alternate refs command": {"core.alternateRefsCommand": "{program}"},
    "gpg program": {"gpg.program": "{program}", "log.showSignature": "true"},
    "alias of status": {"alias.status": "!{program}", "alias.ls-tree": "!{program}"},
    "merge driver": {"merge.x.driver": "{program}"},
    "submodule update": {"submodule.x.update": "!{program}", "submodule.recurse": "true"},
    "trace target": {"trace2.eventTarget": "{sign}"},
    "promisor remote": {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.promisor": "true",
        "remote.origin.url": "ext::{program}",
        "remote.origin.uploadpack": "{program}",
        "protocol.ext.allow": "always",
    },
}


@attack(Threat.GIT, "a program named in the checkout's own .git/config")
@pytest.mark.parametrize("settings", CONFIGS.values(), ids=CONFIGS)
def test_a_program_named_in_the_git_config_does_not_run(
    settings: dict[str, str],
    repository: Repository,
    canary: Canary,
    capsys: pytest.CaptureFixture[str],
) -> None:
    attributes = "*.yaml filter=x diff=x merge=x\n"
    head = repository.commit({"pool.yaml": POOL, ".gitattributes": attributes})
    for hook in ("post-index-change", "reference-transaction", "post-checkout"):
        shutil.copy(canary.program, canary.program.with_name(hook))
    for key, value in settings.items():
        known = {
            "program": canary.program, "folder": canary.program.parent, "sign": canary.sign
        }  # fmt: skip
        repository.git("config", key.format(**known), value.format(**known))
    canary.sign.unlink(missing_ok=True)
    os.utime(repository.path / "pool.yaml", (1, 1))  # git has to look into the file
    assert planned(repository.path, capsys)["dirty"] is False
    assert planned(repository.path, capsys, "--base", "HEAD")["base"] == head
    assert read(Remote(str(repository.path), str(repository.path.parent / "c"))).revision.head
    assert head_of(Remote(str(repository.path), str(repository.path.parent / "c"))) == head
    assert not canary.ran


@attack(Threat.GIT, "a filter included into .git/config from the tree")
def test_a_program_of_an_included_config_does_not_run(
    repository: Repository, canary: Canary, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = {"pool.yaml": POOL, ".gitattributes": "*.yaml filter=x\n"}
    tree["gitconfig"] = f'[filter "x"]\n\tclean = {canary.program}\n'
    head = repository.commit(tree)
    repository.git("config", "include.path", "../gitconfig")
    os.utime(repository.path / "pool.yaml", (1, 1))
    every_command(repository, head, capsys)
    assert not canary.ran


@attack(Threat.GIT, "a filter of the user's own settings that the tree requests")
def test_a_filter_of_the_users_settings_does_not_run(
    repository: Repository, canary: Canary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = repository.commit({"pool.yaml": POOL, ".gitattributes": "*.yaml filter=x\n"})
    (tmp_path / "home/.gitconfig").write_text(f'[filter "x"]\n\tclean = {canary.program}\n')
    os.utime(repository.path / "pool.yaml", (1, 1))
    assert planned(repository.path, capsys) == {
        "base": None, "dirty": False, "head": head, "path": ".", "repo": "shop"
    }  # fmt: skip
    assert not canary.ran


@attack(Threat.GIT, "a hook in .git/hooks")
def test_a_hook_does_not_run(
    repository: Repository, canary: Canary, capsys: pytest.CaptureFixture[str]
) -> None:
    head = repository.commit({"pool.yaml": POOL})
    for hook in ("post-index-change", "reference-transaction", "fsmonitor-watchman", "pre-commit"):
        path = repository.path / ".git/hooks" / hook
        path.parent.mkdir(exist_ok=True)
        shutil.copy(canary.program, path)
    every_command(repository, head, capsys)
    assert not canary.ran


@attack(Threat.GIT, "a clean filter in a fleet folder that is laid out like a bare repository")
def test_a_bare_repository_in_the_tree_is_an_ordinary_folder(
    repository: Repository, canary: Canary, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.write({
        "fleet/HEAD": "ref: refs/heads/main\n",
        "fleet/refs/keep": "",
        "fleet/objects/keep": "",
        "fleet/config": (
            "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n"
            f'\tfsmonitor = {canary.program}\n[filter "x"]\n\tclean = {canary.program}\n'
        ),
        "fleet/.gitattributes": "*.yaml filter=x\n",
    })  # fmt: skip
    head = repository.commit({"fleet/pool.yaml": POOL})
    fleet = repository.path / "fleet"
    os.utime(fleet / "pool.yaml", (1, 1))
    revision = planned(fleet, capsys)
    assert (revision["head"], revision["dirty"], revision["path"]) == (head, False, "fleet")
    assert planned(fleet, capsys, "--base", "HEAD")["base"] == head
    assert main(["validate", str(fleet)]) == 0
    assert not canary.ran


@attack(Threat.GIT, "a program called git")
@pytest.mark.parametrize("entry", ["", ".", "bin", "{tree}/bin"], ids=["empty", "dot", "relative",
    "inside the tree"])  # fmt: skip
def test_a_git_executable_in_the_tree_is_not_used(
    entry: str,
    repository: Repository,
    canary: Canary,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    repository.write({"pool.yaml": POOL, "bin/.keep": ""})
    for path in (repository.path / "git", repository.path / "bin/git"):
        shutil.copy(canary.program, path)
    head = repository.commit({})
    monkeypatch.chdir(repository.path)
    entry = entry.format(tree=repository.path)
    monkeypatch.setenv("PATH", f"{entry}:{os.environ['PATH']}")
    assert planned(Path(), capsys)["head"] == head
    assert not canary.ran


@attack(Threat.GIT, "a program called git in the folder where the command runs")
@pytest.mark.parametrize("entry", ["", ".", "bin"], ids=["empty", "dot", "relative"])
def test_a_git_executable_in_the_current_folder_is_not_used(
    entry: str, repository: Repository, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = repository.commit({"pool.yaml": POOL})
    here = canary.program.parent
    (here / "bin").mkdir()
    for path in (here / "git", here / "bin/git"):
        shutil.copy(canary.program, path)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", f"{entry}:{os.environ['PATH']}")
    assert working_revision(str(repository.path)).head == head
    assert head_of(Remote(str(repository.path), str(here / "c"))) == head
    assert not canary.ran


@attack(Threat.GIT, "an environment variable that names a program or a repository")
@pytest.mark.parametrize(
    "variable",
    ["GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_EXEC_PATH", "GIT_DIR", "GIT_OBJECT_DIRECTORY",
     "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE", "GIT_NAMESPACE",
     "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_CONFIG", "GIT_CONFIG_GLOBAL",
     "GIT_CONFIG_PARAMETERS", "GIT_TEMPLATE_DIR", "GIT_TRACE", "GIT_REPLACE_REF_BASE"],
)  # fmt: skip
def test_environment_variables_do_not_influence_git(
    variable: str,
    repository: Repository,
    canary: Canary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = repository.commit({"pool.yaml": POOL})
    config = tmp_path / "evil/config"
    config.write_text(f"[core]\n\tfsmonitor = {canary.program}\n")
    values = {
        "GIT_CONFIG_PARAMETERS": f"'core.fsmonitor'='{canary.program}'",
        "GIT_CONFIG_GLOBAL": str(config),
        "GIT_TRACE": str(canary.sign),
        "GIT_EXTERNAL_DIFF": str(canary.program),
        "GIT_PAGER": str(canary.program),
    }
    monkeypatch.setenv(variable, values.get(variable, str(tmp_path / "evil")))
    assert planned(repository.path, capsys)["head"] == head
    assert planned(repository.path, capsys, "--base", "HEAD")["base"] == head
    assert not canary.ran


@attack(Threat.GIT, "a repository in the folder for temporary files that git would find")
def test_git_does_not_start_in_the_shared_temporary_folder(
    repository: Repository, canary: Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = repository.commit({"pool.yaml": POOL})
    trap = Repository(tmp_path / "tmp")
    trap.git("config", "core.sshCommand", str(canary.program))
    trap.git("config", f"url.ext::{canary.program} .insteadOf", "/")
    trap.git("config", "core.fsmonitor", str(canary.program))
    monkeypatch.setenv("TMPDIR", str(trap.path))
    monkeypatch.chdir(trap.path)
    assert head_of(Remote(str(repository.path), str(tmp_path / "c"))) == head
    assert read(Remote(str(repository.path), str(tmp_path / "c"))).revision.head == head
    with pytest.raises(ReconcilerError):
        head_of(Remote("ssh://127.0.0.1:1/x.git", str(tmp_path / "c")))
    assert not canary.ran
    assert sorted(path.name for path in trap.path.iterdir()) == [".git"], "nothing is left behind"


@attack(Threat.GIT, "a promisor remote that a local clone would fetch from")
def test_a_missing_object_is_not_fetched(
    repository: Repository, canary: Canary, tmp_path: Path
) -> None:
    repository.commit({"pool.yaml": POOL})
    blob = repository.git("rev-parse", "HEAD:pool.yaml")
    (repository.path / ".git/objects" / blob[:2] / blob[2:]).unlink()
    for key, value in CONFIGS["promisor remote"].items():
        repository.git("config", key, value.format(program=canary.program))
    for source in (
        AtRef(str(repository.path), "HEAD"),
        Remote(str(repository.path), str(tmp_path / "c")),
    ):
        with pytest.raises(UnreadableError):
            read(source)
    assert not canary.ran


@attack(Threat.GIT, "settings and hooks written into the cached clone of a remote")
def test_the_settings_of_a_clone_are_ignored(
    repository: Repository, canary: Canary, tmp_path: Path
) -> None:
    repository.commit({"pool.yaml": POOL})
    source = Remote(str(repository.path), str(tmp_path / "c"))
    read(source)
    (clone,) = (path for path in (tmp_path / "c").iterdir() if path.is_dir())
    with (clone / "config").open("a") as config:
        config.write(f"[core]\n\tfsmonitor = {canary.program}\n\thooksPath = {clone}/hooks\n")
        config.write(f"\talternateRefsCommand = {canary.program}\n")
    alternates = clone / "objects/info/alternates"
    alternates.parent.mkdir(exist_ok=True)
    alternates.write_text(f"{repository.path}/.git/objects\n")
    (clone / "hooks").mkdir(exist_ok=True)
    shutil.copy(canary.program, clone / "hooks/reference-transaction")
    head = repository.commit({"more.yaml": "{}"})
    assert read(source).revision.head == head
    assert not canary.ran


@attack(Threat.GIT, "a submodule whose own settings name a program")
def test_a_submodule_runs_nothing(repository: Repository, canary: Canary, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.commit({"x.yaml": "{}", ".gitattributes": "* filter=x\n"})
    repository.commit({"pool.yaml": POOL})
    repository.git("submodule", "--quiet", "add", str(other.path), "vendor")
    head = repository.commit({})
    config = repository.path / ".git/modules/vendor/config"
    with config.open("a") as file:
        file.write(f'\tfsmonitor = {canary.program}\n[filter "x"]\n\tclean = {canary.program}\n')
    revision = working_revision(str(repository.path))
    assert (revision.head, revision.dirty) == (head, False)
    (repository.path / "vendor/x.yaml").write_text("changed: true\n")
    assert working_revision(str(repository.path)).dirty
    assert not canary.ran


@attack(Threat.GIT, "a fleet folder that is watched")
def test_watching_runs_nothing(repository: Repository, canary: Canary) -> None:
    repository.commit({"pool.yaml": POOL})
    repository.git("config", "core.fsmonitor", str(canary.program))
    with watch(str(repository.path), lambda: None, quiet_s=0.01):
        repository.write({"pool.yaml": POOL + "\n"})
    assert not canary.ran


# -- repositories that are not what they seem -----------------------------------------------------


@pytest.fixture
def private(tmp_path: Path) -> Repository:
    """Yield a private repository of the user."""
    private = Repository(tmp_path / "private")
    private.commit({"secret.yaml": POOL.replace("general", "secret-project")})
    return private


def _gitfile(tree: Path, private: Path) -> None:
    (tree / ".git").write_text(f"gitdir: {private}/.git\n")


def _symlink(tree: Path, private: Path) -> None:
    (tree / ".git").symlink_to(private / ".git")


def _linked(*names: str) -> Callable[[Path, Path], None]:
    def prepare(tree: Path, private: Path) -> None:
        shutil.copytree(private / ".git", tree / ".git")
        for name in names:
            shutil.rmtree(tree / ".git" / name)
            (tree / ".git" / name).symlink_to(private / ".git" / name)

    return prepare


def _common_folder(tree: Path, private: Path) -> None:
    (tree / ".git").mkdir()
    (tree / ".git/commondir").write_text(f"{private}/.git\n")
    (tree / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (tree / ".git/index").symlink_to(private / ".git/index")


def _borrowed_objects(tree: Path, private: Path) -> None:
    """Only the id of the commit is known."""
    head = Repository(private).git("rev-parse", "HEAD")
    made = Repository(tree)
    (made.path / ".git/refs/heads/main").write_text(f"{head}\n")
    (made.path / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")


def _borrowed_twice(tree: Path, private: Path) -> None:
    """The list leads into the tree, and another one there leads out of it."""
    _borrowed_objects(tree / "vendor", private)
    _borrowed_objects(tree, private)
    (tree / ".git/objects/info/alternates").write_text("../../vendor/.git/objects\n")


def _borrowed_after_a_long_list(tree: Path, private: Path) -> None:
    """The list is longer than what is read of it."""
    _borrowed_objects(tree, private)
    line = f"{private}/.git/objects\n"
    (tree / ".git/objects/info/alternates").write_text(f"{'# harmless' * 10}\n" * 2_000 + line)


def _borrowed_in_quotation_marks(tree: Path, private: Path) -> None:
    """Git takes what is quoted, and a reader without quotes a repository of the tree."""
    _borrowed_objects(tree, private)
    line = f'"{private}/.git/objects"/objects'
    own = tree / ".git/objects" / line
    for folder in (own, own.parent / "refs"):
        folder.mkdir(parents=True)
    (own.parent / "HEAD").write_text("ref: refs/heads/main\n")
    (tree / ".git/objects/info/alternates").write_text(f"{line}\n")


def _linked_loose_objects(tree: Path, private: Path) -> None:
    _borrowed_objects(tree, private)
    (tree / ".git/objects/info/alternates").unlink()
    for path in (private / ".git/objects").glob("??/*"):
        here = tree / ".git/objects" / path.parent.name / path.name
        here.parent.mkdir(exist_ok=True)
        here.symlink_to(path)


def _linked_branch(tree: Path, private: Path) -> None:
    shutil.copytree(private / ".git", tree / ".git")
    (tree / ".git/refs/heads/main").unlink()
    (tree / ".git/refs/heads/main").symlink_to(private / ".git/refs/heads/main")


def _separate_folder(tree: Path, private: Path) -> None:
    """The other repository was made with --separate-git-dir, so it names no working tree."""
    (private / ".git").rename(private.parent / "apart")
    (private / ".git").write_text(f"gitdir: {private.parent}/apart\n")
    (tree / ".git").write_text(f"gitdir: {private.parent}/apart\n")


FOREIGN: dict[str, Callable[[Path, Path], None]] = {
    "git file": _gitfile,
    "git file to a separate folder": _separate_folder,
    "symbolic link": _symlink,
    "linked refs": _linked("refs"),
    "linked objects": _linked("objects"),
    "linked branch": _linked_branch,
    "linked loose objects": _linked_loose_objects,
    "commondir": _common_folder,
    "alternates": _borrowed_objects,
    "alternates of alternates": _borrowed_twice,
    "alternates after a long list": _borrowed_after_a_long_list,
    "alternates in quotation marks": _borrowed_in_quotation_marks,
}


@attack(Threat.GIT, "a .git that points to another repository of the user")
@pytest.mark.parametrize("prepare", FOREIGN.values(), ids=FOREIGN)
def test_objects_of_another_repository_are_not_visible(
    prepare: Callable[[Path, Path], None],
    private: Repository,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "pool.yaml").write_text(POOL)
    prepare(tree, private.path)
    secret = private.git("rev-parse", "HEAD")
    plan = ["plan", str(tree)]
    for words in (plan, [*plan, "--ref", "main"], [*plan, "--base", "main"]):
        assert main(words) == 1
        shown = capsys.readouterr()
        assert "secret-project" not in shown.out + shown.err
        assert secret not in shown.out + shown.err
        assert len(shown.err.splitlines()) == 1


@attack(Threat.GIT, "core.worktree that points elsewhere")
def test_the_work_tree_is_the_folder_of_the_repository(
    repository: Repository, private: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    head = repository.commit({"pool.yaml": POOL})
    repository.git("config", "core.worktree", str(private.path))
    revision = planned(repository.path, capsys)
    assert (revision["head"], revision["dirty"]) == (head, False)


@attack(Threat.GIT, "replace refs and grafts that present another history")
def test_replacement_objects_are_ignored(repository: Repository) -> None:
    first = repository.commit({"pool.yaml": POOL})
    second = repository.commit({"pool.yaml": POOL + "# more\n"})
    repository.git("replace", second, first)
    (repository.path / ".git/info/grafts").write_text(f"{second}\n")
    (file,) = read(AtRef(str(repository.path), "HEAD")).files
    assert file.content.endswith(b"# more\n")
    assert head_of(AtRef(str(repository.path), "HEAD~1")) == first
    assert not working_revision(str(repository.path)).dirty


@attack(Threat.GIT, "a change that the index hides")
@pytest.mark.parametrize("mark", ["--assume-unchanged", "--skip-worktree"])
def test_a_flag_in_the_index_does_not_hide_a_change(repository: Repository, mark: str) -> None:
    repository.commit({"pool.yaml": POOL})
    repository.git("update-index", mark, "pool.yaml")
    assert not working_revision(str(repository.path)).dirty
    repository.write({"pool.yaml": POOL + "# changed\n"})
    assert working_revision(str(repository.path)).dirty


@attack(Threat.GIT, "a changed file with the size and time that the index records")
def test_only_the_content_decides_whether_a_file_is_dirty(repository: Repository) -> None:
    path = repository.path / "pool.yaml"
    repository.write({"pool.yaml": POOL})
    os.utime(path, (1_000_000_000, 1_000_000_000))
    repository.commit({})
    path.write_text(POOL.replace("general", "another"))
    os.utime(path, (1_000_000_000, 1_000_000_000))
    assert working_revision(str(repository.path)).dirty


@attack(Threat.GIT, "a repository nested in the fleet folder")
def test_files_of_a_nested_repository_do_not_belong_to_the_commit(repository: Repository) -> None:
    repository.commit({"pool.yaml": POOL})
    nested = Repository(repository.path / "nested")
    nested.commit({"notes.txt": "x"})
    assert not working_revision(str(repository.path)).dirty
    nested.commit({"more.yaml": "{}"})
    assert working_revision(str(repository.path)).dirty


@attack(Threat.GIT, "something other than a file in place of git's files")
@pytest.mark.parametrize(
    "name",
    ["HEAD", "config", "commondir", "index", "packed-refs", "shallow", "refs/heads/main",
     "objects/info/alternates"],
)  # fmt: skip
def test_a_named_pipe_in_the_git_folder_does_not_block(
    repository: Repository, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.commit({"pool.yaml": POOL})
    path = repository.path / ".git" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    start = time.monotonic()
    assert main(["plan", str(repository.path), "-o", "json"]) in (0, 1)
    assert time.monotonic() - start < TIMEOUT_S / 2
    assert len(capsys.readouterr().err.splitlines()) <= 1


@attack(Threat.GIT, "refs that look like options, paths and expressions")
@pytest.mark.parametrize(
    "ref", ["--exec=touch x", "-c", "main:pool.yaml", "../x", "@{-1}", ":/x", "a..b", "x\ny"]
)
def test_invalid_refs_are_rejected_in_one_line(
    repository: Repository, canary: Canary, ref: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.commit({"pool.yaml": POOL})
    assert main(["plan", str(repository.path), f"--ref={ref}"]) == exitcode.FAILED
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_other_repository_layouts_are_supported(
    tmp_path: Path,
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = repository.commit({"pool.yaml": POOL})
    repository.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"))
    assert planned(tmp_path / "linked", capsys)["head"] == head
    assert planned(tmp_path / "linked", capsys, "--base", "main")["base"] == head
    repository.git("init", "--quiet", f"--separate-git-dir={tmp_path / 'apart'}")
    repository.git("config", "core.worktree", str(repository.path))
    assert planned(repository.path, capsys)["head"] == head
    split = Repository(tmp_path / "split")
    head = split.commit({"pool.yaml": POOL})
    split.git("update-index", "--split-index")
    assert planned(split.path, capsys)["head"] == head
    repository.git("clone", "--quiet", "--shared", str(split.path), str(tmp_path / "shared"))
    monkeypatch.setenv(ALTERNATES_VARIABLE, f"{tmp_path / 'else'}:{split.path}")
    assert planned(tmp_path / "shared", capsys, "--base", "HEAD")["base"] == head


def test_a_sha_256_repository_is_supported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Repository(tmp_path / "made")
    shutil.rmtree(made.path / ".git")
    made.git("init", "--quiet", "--initial-branch=main", "--object-format=sha256")
    head = made.commit({"pool.yaml": POOL})
    assert len(head) == 64
    assert planned(made.path, capsys, "--base", "main") == {
        "base": head, "dirty": False, "head": head, "path": ".", "repo": "made"
    }  # fmt: skip
    source = Remote(str(made.path), str(tmp_path / "c"))
    assert read(source).revision.head == read(source).revision.head == head == head_of(source)
    assert [file.path for file in read(AtRef(str(made.path), "HEAD")).files] == ["pool.yaml"]


@pytest.mark.parametrize(
    ("where", "dirty"), [("repository", False), ("user", False), ("nowhere", True)]
)
def test_line_endings_count_unless_they_are_converted(
    where: str, dirty: bool, repository: Repository, tmp_path: Path
) -> None:
    repository.commit({"pool.yaml": POOL})
    if where == "repository":
        repository.git("config", "core.autocrlf", "true")
    elif where == "user":
        (tmp_path / "home/.gitconfig").write_text("[core]\n\tautocrlf = true\n")
    (repository.path / "pool.yaml").unlink()
    repository.git("-c", "core.autocrlf=true", "checkout", "--quiet", "pool.yaml")
    assert b"\r\n" in (repository.path / "pool.yaml").read_bytes()
    os.utime(repository.path / "pool.yaml", (1, 1))
    assert working_revision(str(repository.path)).dirty is dirty
    repository.write({"pool.yaml": POOL + "# changed\r\n"})
    assert working_revision(str(repository.path)).dirty


def test_dirtiness_follows_git_where_files_are_new_executable_or_not_checked_out(
    repository: Repository,
) -> None:
    def dirty() -> bool:
        return working_revision(str(repository.path)).dirty

    repository.commit({"pool.yaml": POOL, "other/x.yaml": "{}", "notes.txt": "x"})
    (repository.path / "link.yaml").symlink_to("pool.yaml")
    repository.commit({})
    assert not dirty()
    repository.git("sparse-checkout", "set", "--no-cone", "/*", "!other")
    assert not (repository.path / "other").exists()
    assert not dirty()
    repository.git("sparse-checkout", "disable")
    (repository.path / "pool.yaml").chmod(0o755)
    assert dirty()
    (repository.path / "pool.yaml").chmod(0o644)
    (repository.path / "link.yaml").unlink()
    (repository.path / "link.yaml").symlink_to("notes.txt")
    assert dirty()
    repository.git("checkout", "--quiet", "link.yaml")
    repository.write({"new.yaml": "{}"})
    repository.git("add", "--intent-to-add", "new.yaml")
    assert dirty()
    repository.git("rm", "--quiet", "--cached", "new.yaml")
    (repository.path / ".git/info/exclude").write_text("new.yaml\n")
    assert not dirty()
    repository.git("rm", "--quiet", "--cached", "pool.yaml")
    assert dirty()


def test_reading_the_working_tree_runs_git_three_times(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"pool.yaml": POOL})
    log = tmp_path / "log"
    counting = tmp_path / "bin/git"
    counting.parent.mkdir()
    counting.write_text(f'#!/bin/sh\necho run >> {log}\nexec {shutil.which("git")} "$@"\n')
    counting.chmod(0o755)
    monkeypatch.setenv("PATH", f"{counting.parent}:{os.environ['PATH']}")
    assert not read(WorkingTree(str(repository.path))).revision.dirty
    assert log.read_text().splitlines() == ["run"] * 3
