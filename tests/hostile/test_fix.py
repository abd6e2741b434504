"""Attacks by which a fleet folder makes `validate --fix` write unintended files."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.adapters.git.folder import read_folder
from reconciler.assembly.inputs.fixing import fix_folder
from reconciler.cli.main import main
from reconciler.model.errors import UnreadableError
from tests.cli.test_validate_bad_input import POOL
from tests.hostile.threats import Threat, attack

OLD = POOL.replace("WhenEmptyOrUnderutilized", "WhenUnderutilized")


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    folder.mkdir()
    return folder


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    outside.mkdir()
    file = outside / "victim.yaml"
    file.write_text(OLD)
    return file


@attack(Threat.HIDDEN, "a symbolic link from the fleet to a file outside it, for --fix to rewrite")
def test_fix_does_not_follow_a_symbolic_link_out_of_the_folder(fleet: Path, victim: Path) -> None:
    (fleet / "pool.yaml").symlink_to(victim)
    assert main(["validate", str(fleet), "--fix"]) == 3
    assert victim.read_text() == OLD
    assert (fleet / "pool.yaml").is_symlink()


@attack(Threat.HIDDEN, "a symbolic link to a folder outside the fleet, for --fix to rewrite")
def test_fix_does_not_follow_a_linked_folder(fleet: Path, victim: Path) -> None:
    (fleet / "pools").symlink_to(victim.parent)
    assert main(["validate", str(fleet), "--fix"]) == 3
    assert victim.read_text() == OLD


@attack(Threat.HIDDEN, "a file that becomes a link out of the fleet between reading and writing")
def test_fix_checks_the_location_of_a_file_when_writing(fleet: Path, victim: Path) -> None:
    (fleet / "pool.yaml").write_text(OLD)
    files, _ = read_folder(fleet)
    (fleet / "pool.yaml").unlink()
    (fleet / "pool.yaml").symlink_to(victim)

    with pytest.raises(UnreadableError, match="leads out of the fleet folder"):
        fix_folder(str(fleet), files)

    assert victim.read_text() == OLD


@attack(Threat.HIDDEN, "a file that somebody edits while --fix runs")
def test_fix_does_not_overwrite_a_concurrent_edit(fleet: Path) -> None:
    (fleet / "pool.yaml").write_text(OLD)
    files, _ = read_folder(fleet)
    edited = OLD.replace("WhenUnderutilized", "WhenEmpty")
    (fleet / "pool.yaml").write_text(edited)

    with pytest.raises(UnreadableError, match="has changed since it was read"):
        fix_folder(str(fleet), files)

    assert (fleet / "pool.yaml").read_text() == edited
