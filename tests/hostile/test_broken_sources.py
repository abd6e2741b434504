"""Changes that make a source unreadable, so that what it makes is not compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.sourcefolders import CLASS, POOL, WEB, write
from tests.cli.test_sources import needs_kustomize, work
from tests.cli.test_unread_sources import commit
from tests.hostile.threats import Threat, attack

__all__ = ["work"]


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
