"""Attacks by which a file of a checkout runs because a process was started in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.model.errors import UsageError
from reconciler.sweep.daskcluster import DaskCluster
from tests.action.runner import Job
from tests.cli import advisedfleet
from tests.hostile.threats import Threat, attack
from tests.hostile.traps import INSTALLED, ROOT, Traps
from tests.repositories import commit_all, git, init

COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
POLICY = """\
apiVersion: reconciler/v1
policies:
- name: cheap
  expression: "true"
"""
pytestmark = pytest.mark.skipif(not INSTALLED.exists(), reason="no installed command to run")


@pytest.fixture
def traps(tmp_path: Path) -> Traps:
    """A pull request that changes two fleets, and adds a module for every import of ours."""
    checkout = tmp_path / "checkout"
    for name in ("web", "gpu"):
        shutil.copytree(ROOT / "examples" / name, checkout / name)
    (checkout / "trace.csv").write_text(f"{COLUMNS}\na,1500,1024,0,0,0,120,30\n")
    init(checkout)
    commit_all(checkout)
    git(checkout, "update-ref", "refs/remotes/origin/main", "HEAD")
    advisedfleet.write_fleet(checkout / "shop")
    (checkout / "shop.csv").write_text(advisedfleet.TRACE)
    for file in ("web/workloads/frontend.yaml", "gpu/reconciler.yaml"):
        path = checkout / file
        path.write_text(path.read_text() + "# changed\n")
    commit_all(checkout)
    git(checkout, "clone", "--quiet", "--bare", str(checkout), str(tmp_path / "remote.git"))
    return Traps(checkout, tmp_path / "sprung")


def run(
    traps: Traps, *words: str, command: str = str(INSTALLED), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the installed command in the checkout."""
    passed = {"HOME": str(traps.folder.parent), "PATH": os.environ["PATH"], **variables}
    return subprocess.run(
        [command, *words], cwd=traps.folder, env=passed, capture_output=True, text=True, check=False
    )


@attack(Threat.PROCESSES, "a module in the checkout for each import, while a command runs there")
@pytest.mark.parametrize(
    "words",
    [
        "ci --base origin/main --jobs 2 --out ../plans --trace trace.csv",
        "simulate web --trace trace.csv --seeds 2 --workers 2",
        "simulate web --base origin/main",
        "advise ADVISED --trace shop.csv -o json --workers 2",
        "validate web",
        "hash web",
        "config web",
        "plan web --base origin/main",
        "plan web --policy ../rules.yaml",
        "lock web",
        "plan --repo ../remote.git --path web",
        "init new --no-lock --region us-east-1",
        "demo --dir ../stage",
    ],
)
def test_no_module_of_the_checkout_is_imported(words: str, traps: Traps) -> None:
    (traps.folder.parent / "rules.yaml").write_text(POLICY)
    shop = advisedfleet.words(traps.folder / "shop")
    line = [part for word in words.split() for part in (shop if word == "ADVISED" else [word])]
    done = run(traps, *line)
    assert traps.sprung == []
    assert "internal error" not in done.stderr
    assert done.returncode in ((0, 1) if words.startswith(("init", "lock")) else (0,)), done.stderr


@attack(Threat.PROCESSES, "a variable with which processes would load code from the checkout")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_LIBRARY_PATH", ":."),
        ("PATH", f".:{os.environ['PATH']}"),
        ("PYTHONPATH", ""),
        ("GIT_EXEC_PATH", "."),
    ],
)
def test_no_variable_leads_a_process_into_the_checkout(name: str, value: str, traps: Traps) -> None:
    done = run(traps, "ci", "--base", "origin/main", "--jobs", "2", **{name: value})
    assert traps.sprung == []
    assert done.returncode == 0, done.stderr


@attack(Threat.PROCESSES, "modules in the checkout, for a process that evaluates to import")
def test_processes_import_nothing_from_the_current_folder_of_their_parent(traps: Traps) -> None:
    """Even where the interpreter was started with the checkout on its import path."""
    code = (
        "import os, sys; import reconciler.sweep.processes;"
        f"os.chdir({str(traps.folder)!r}); sys.path.insert(0, os.getcwd()); sys.path.insert(0, '');"
        "from reconciler.cli.main import main;"
        "sys.exit(main(['ci', '--base', 'origin/main', '--jobs', '2', '--out', '../plans']))"
    )
    for name in sorted(p.stem for p in traps.folder.glob("*.py")):
        if name not in {"multiprocessing", "sitecustomize", "pickle", "signal"}:
            (traps.folder / f"{name}.py").unlink()  # the parent would import it by itself
            shutil.rmtree(traps.folder / name, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert traps.sprung == []


@attack(Threat.PROCESSES, "a pip.py and other modules in the checkout, while the action installs")
def test_the_action_installs_nothing_from_the_checkout(traps: Traps, tmp_path: Path) -> None:
    temp, path, action = tmp_path / "temp", tmp_path / "path", tmp_path / "action"
    temp.mkdir()
    (action / "requirements").mkdir(parents=True)
    (action / "requirements" / "action.lock").write_text("")
    done = subprocess.run(
        [sys.executable, "-I", str(ROOT / ".github" / "action" / "install.py")],
        cwd=traps.folder,
        env={
            "PATH": f":{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "GITHUB_ACTION_PATH": str(action),
            "GITHUB_PATH": str(path),
            "RUNNER_TEMP": str(temp),
            "PYTHONPATH": ".",
            "PIP_NO_INDEX": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert traps.sprung == []
    assert "::error::the installation failed" in done.stdout  # nothing to install in this test
    assert "install --quiet --no-deps" in done.stdout


@attack(Threat.PROCESSES, "modules in the checkout, while the steps of the action run in it")
def test_the_steps_of_the_action_run_nothing_from_the_checkout(
    traps: Traps, tmp_path: Path
) -> None:
    temp = tmp_path / "temp"
    temp.mkdir()
    job = Job(
        traps.folder,
        temp,
        {"GITHUB_BASE_REF": "main", "GITHUB_EVENT_NAME": "pull_request"},
        {"pull_request": {"number": 7}},
    )
    outputs = job.run({"stage": "plan"})
    assert job.failed == "", job.log
    assert traps.sprung == []
    assert outputs["fleets"] == "gpu web"


@attack(Threat.PROCESSES, "a checkout on PYTHONPATH, for the command that the action installs")
def test_the_command_of_the_action_reads_no_variable_of_python(
    traps: Traps, tmp_path: Path
) -> None:
    sys.path.insert(0, str(ROOT / ".github" / "action"))
    try:
        import install
    finally:
        sys.path.pop(0)
    command = tmp_path / "reconciler"
    command.write_text(install.launcher(Path(sys.executable).parents[1]))
    command.chmod(0o755)
    words = ("ci", "--base", "origin/main", "--jobs", "2", "--out", "../plans")
    done = run(traps, *words, command=str(command), PYTHONPATH=".", PYTHONHOME=".")
    assert done.returncode == 0, done.stderr
    assert traps.sprung == []


@attack(Threat.PROCESSES, "pickles from a Dask cluster on the way to another machine")
@pytest.mark.parametrize(
    "host", ["scheduler", "10.0.0.1", "127.0.0.1.nip.io", "[2001:db8::1]", "0.0.0.0", "localhost.x"]
)
def test_no_pickle_comes_from_another_machine_without_tls(host: str) -> None:
    pytest.importorskip("distributed")
    with pytest.raises(UsageError, match="another machine, without TLS"):
        DaskCluster(f"tcp://{host}:8786")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.1.2.3"])
def test_a_tunnel_to_a_dask_cluster_ends_on_this_machine(host: str) -> None:
    pytest.importorskip("distributed")
    DaskCluster(f"tcp://{host}:8786")
