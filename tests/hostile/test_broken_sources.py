"""Changes that make a source, a file or an object unreadable, so that it is not compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.sourcefolders import CLASS, POOL, WEB, write
from tests.cli.test_sources import needs_kustomize, work
from tests.cli.test_unread_sources import commit
from tests.hostile.threats import Threat, attack

__all__ = ["work"]

MANY = WEB.replace("replicas: 1", "replicas: 40")


@needs_kustomize
@attack(Threat.HIDDEN, "a change that breaks the source of workloads, so that they look removed")
@pytest.mark.parametrize("folder", ["apps", "what is here", "a, b and c; d"])
@pytest.mark.parametrize("command", ["plan", "simulate"])
def test_no_change_hides_the_workloads_of_a_source_by_breaking_it(
    command: str, folder: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``new_failures``."""
    write(work, {"nodes.yaml": f"{POOL}---\n{CLASS}", f"{folder}/web.yaml": WEB})
    write(work, {f"{folder}/kustomization.yaml": "resources: [web.yaml]\n"})
    commit(work, "before")
    arguments = [command, ".", "--base", "HEAD", "--set", "cluster=none"]
    assert main(arguments) == 0
    write(work, {f"{folder}/kustomization.yaml": "resources: [web.yaml, gone.yaml]\n"})
    capsys.readouterr()
    assert main(arguments) == 1
    assert '"gone.yaml" does not exist' in capsys.readouterr().err


@needs_kustomize
@attack(Threat.HIDDEN, "overlays beside that of the workloads, of which none is planned then")
@pytest.mark.parametrize("count", [1, 30])
def test_no_change_hides_workloads_with_overlays_of_the_same_base(
    count: int, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``new_failures``, which knows all overlays, where a message names a few."""
    write(work, {"nodes.yaml": f"{POOL}---\n{CLASS}", "apps/base/web.yaml": WEB})
    write(work, {"apps/base/kustomization.yaml": "resources: [web.yaml]\n"})
    overlay = "resources: [../base]\n"
    write(work, {"apps/prod/kustomization.yaml": overlay})
    commit(work, "before")
    write(work, {f"apps/a{number}/kustomization.yaml": overlay for number in range(count)})
    assert main(["plan", ".", "--base", "HEAD", "--set", "cluster=none"]) == 1
    assert f"{count + 1} overlays share a base" in capsys.readouterr().err


_HIDING = {
    "a file that is no YAML": {"apps/web.yaml": f"{MANY}  a: b: c\n"},
    "an older API": {"apps/web.yaml": MANY.replace("apps/v1", "apps/v1beta1")},
    "a wrong field": {"apps/web.yaml": MANY.replace("replicas: 40", "replicas: '40'")},
    "a new file": {"apps/new.yaml": MANY.replace("name: web,", "name: new,") + "  a: b: c\n"},
    "an object of the same name before it": {"apps/a.yaml": WEB.replace('"1"', "1m")},
    "one of the same name in a folder before it": {"a/a.yaml": WEB.replace('"1"', "1m")},
    "a file that the base leaves out as well": {"apps/old.yaml": f"{MANY}  a: b: c\n"},
    "an object that the base leaves out as well": {
        "apps/older.yaml": MANY.replace("name: web,", "name: o,").replace("apps/v1", "apps/v1beta1")
    },
}


@attack(Threat.HIDDEN, "pods in a file or an object with an error, which a plan leaves out")
@pytest.mark.parametrize("files", _HIDING.values(), ids=_HIDING)
@pytest.mark.parametrize("command", ["plan", "simulate", "ci"])
def test_no_change_hides_pods_by_an_error(
    command: str, files: dict[str, str], work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``new_failures``, by the content of what is left out."""
    write(work, {"nodes.yaml": f"{POOL}---\n{CLASS}", "apps/web.yaml": WEB})
    older = WEB.replace("name: web,", "name: o,").replace("apps/v1", "apps/v1beta1")
    write(work, {"apps/old.yaml": f"{WEB}  a: b: c\n", "apps/older.yaml": older})
    commit(work, "before")
    write(work, files)
    commit(work, "after")
    more = ["--out", str(work.parent / "out")] if command == "ci" else []
    arguments = [command, ".", "--base", "HEAD~1", "--set", "cluster=none", *more]
    assert main(arguments) != 0
    text = "".join(capsys.readouterr())
    (file,) = files
    assert f"{file}:" in text or "only that one is planned" in text
