"""What is installed is what was reviewed: locks with hashes, digests, pinned actions."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.hostile.threats import Threat, attack
from tests.yamltext import load

ROOT = Path(__file__).resolve().parents[2]
COMPLETE = ROOT / "requirements.lock"
LOCKS = [COMPLETE, *sorted((ROOT / "requirements").glob("*.lock"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
INSTALLING = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Dockerfile", *WORKFLOWS)


def pins(lock: Path) -> dict[str, tuple[Requirement, list[str]]]:
    """Return each requirement of a lock with its hashes, by requirement."""
    found = {}
    for line in lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            pin, *hashes = (part.strip() for part in line.split("--hash="))
            found[pin] = (Requirement(pin), hashes)
    return found


def check_lock(lock: Path) -> None:
    """Check that a lock consists of exact versions with their hashes."""
    found = pins(lock)
    assert found
    for pin, (requirement, hashes) in found.items():
        assert re.fullmatch(r"==[^*,]+", str(requirement.specifier)), pin
        assert requirement.url is None, pin
        assert hashes, pin
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in hashes), pin


@attack(Threat.SUPPLY_CHAIN, "a published file replaced by another of the same version")
def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    forged = tmp_path / "six-1.17.0-py2.py3-none-any.whl"
    with zipfile.ZipFile(forged, "w") as wheel:
        wheel.writestr("six.py", "open('ran', 'w')")
        wheel.writestr("six-1.17.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: six\n")
        wheel.writestr("six-1.17.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("six-1.17.0.dist-info/RECORD", "")
    six = next(pin for pin, (req, _) in pins(COMPLETE).items() if req.name == "six")
    wanted = tmp_path / "wanted.txt"
    hashes = " ".join(f"--hash={digest}" for digest in pins(COMPLETE)[six][1])
    wanted.write_text(f"{six} {hashes}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-cache-dir"]
    command += ["--find-links", str(tmp_path), "--target", str(tmp_path / "site")]
    done = subprocess.run(
        [*command, "--require-hashes", "-r", str(wanted)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "site").exists()


@attack(Threat.SUPPLY_CHAIN, "a dependency without a locked version or hash")
@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_locked_dependency_has_one_version_and_hashes(lock: Path) -> None:
    check_lock(lock)


@attack(Threat.SUPPLY_CHAIN, "a line in a lock that names another index, a URL or a file")
@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://packages.example.com/simple",
        "--extra-index-url https://packages.example.com/simple",
        "--find-links packages",
        "--trusted-host packages.example.com",
        "-r more.txt",
        "-e .",
        "git+https://example.com/boto3.git@main",
        "boto3 @ https://example.com/boto3.whl --hash=sha256:" + "0" * 64,
        "./boto3.whl --hash=sha256:" + "0" * 64,
        "boto3>=1 --hash=sha256:" + "0" * 64,
        "boto3==1.40.0",
        "boto3==1.* --hash=sha256:" + "0" * 64,
        "boto3==1.40.0 --hash=md5:" + "0" * 32,
    ],
)
def test_a_lock_names_versions_and_hashes_only(line: str, tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    lock.write_text(f"boto3==1.40.0 --hash=sha256:{'0' * 64}\n", encoding="utf-8")
    check_lock(lock)
    lock.write_text(f"{lock.read_text(encoding='utf-8')}{line}\n", encoding="utf-8")
    with pytest.raises((AssertionError, InvalidRequirement)):
        check_lock(lock)


@attack(Threat.SUPPLY_CHAIN, "a dependency that is declared but not locked")
def test_the_lock_contains_every_declared_dependency_within_its_bounds() -> None:
    locked: dict[str, list[Requirement]] = {}
    for requirement, _ in pins(COMPLETE).values():
        locked.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    declared = [*PROJECT["dependencies"]]
    for extra in PROJECT["optional-dependencies"].values():
        declared += extra
    for text in declared:
        wanted = Requirement(text)
        versions = [str(r.specifier)[2:] for r in locked[canonicalize_name(wanted.name)]]
        assert all(wanted.specifier.contains(v) for v in versions), text
        assert ">=" in text, f"{text} has no lower bound"


def _required_by(name: str, extras: frozenset[str]) -> list[Requirement]:
    """Return what an installed package requires, on any platform, with some of its extras."""
    found = []
    for text in importlib.metadata.requires(name) or []:
        requirement = Requirement(text)
        wanted = [{"extra": extra} for extra in (extras or {""})]
        is_optional = "extra" in str(requirement.marker or "")
        if not is_optional or any(requirement.marker.evaluate(one) for one in wanted):  # type: ignore[union-attr]
            found.append(requirement)
    return found


def _reachable(declared: list[str]) -> set[str]:
    """Return the names that declared requirements lead to, by the metadata of what is installed."""
    todo = [Requirement(text) for text in declared]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            todo += _required_by(*key)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform or group
    return {name for name, _ in seen}


@attack(Threat.SUPPLY_CHAIN, "a package with a similar name in a lock, which nothing requires")
@pytest.mark.parametrize("name", ["requirements.lock", "production.lock", "action.lock"])
def test_every_locked_package_is_required_by_what_is_declared(name: str) -> None:
    """Guard: the metadata of the packages. A line that somebody adds to a lock leads to none."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = [*PROJECT["dependencies"], *groups["build-system"]["requires"]]
    for more in (*PROJECT["optional-dependencies"].values(), *groups["dependency-groups"].values()):
        declared += [text for text in more if isinstance(text, str)]
    (lock,) = (path for path in LOCKS if path.name == name)
    locked = {canonicalize_name(found.name) for found, _ in pins(lock).values()}
    assert (locked | {"boto33"}) - _reachable(declared) == {"boto33"}


@attack(Threat.SUPPLY_CHAIN, "another version in the image or the demo than in the tests")
@pytest.mark.parametrize("name", ["embedded.lock", "production.lock"])
def test_the_smaller_locks_are_subsets_of_the_complete_one(name: str) -> None:
    complete = {
        (canonicalize_name(requirement.name), str(requirement.specifier)): hashes
        for requirement, hashes in pins(COMPLETE).values()
    }
    for requirement, hashes in pins(ROOT / "requirements" / name).values():
        key = (canonicalize_name(requirement.name), str(requirement.specifier))
        assert complete[key] == hashes


@attack(Threat.SUPPLY_CHAIN, "an installation step that skips the hashes")
@pytest.mark.parametrize("path", INSTALLING, ids=lambda path: path.name)
def test_every_installation_checks_hashes(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    found = re.findall(r"pip install([^&\n`]*)", text)
    assert found
    for arguments in found:
        assert "--require-hashes" in arguments or (
            "--no-deps" in arguments and "--no-build-isolation" in arguments
        ), arguments


@attack(Threat.SUPPLY_CHAIN, "an action whose tag is moved to other code")
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit(path: Path) -> None:
    workflow = load(path.read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action) for action in used)
    assert workflow["permissions"] == {"contents": "read"}


@attack(Threat.SUPPLY_CHAIN, "a base image whose tag is moved to other content")
def test_the_base_image_is_named_by_digest() -> None:
    base = next(line for line in DOCKERFILE if line.startswith("ARG PYTHON="))
    assert re.fullmatch(r"ARG PYTHON=python:3\.13-\S+@sha256:[0-9a-f]{64}", base)
    stages = [line for line in DOCKERFILE if line.startswith("FROM ")]
    assert stages == ["FROM ${PYTHON} AS build", "FROM ${PYTHON}"]


@attack(Threat.SUPPLY_CHAIN, "an image that runs as root or writes to its root file system")
def test_the_image_runs_as_a_user_and_writes_to_its_volume_only() -> None:
    words = [line.split(maxsplit=1) for line in DOCKERFILE if line and not line.startswith("#")]
    final = words[len(words) - [w[0] for w in reversed(words)].index("FROM") :]
    by_keyword = {word[0]: word[1] for word in final}
    assert by_keyword["USER"] == "10001:10001"
    assert by_keyword["VOLUME"] == "/var/lib/reconciler"
    assert "HOME=/var/lib/reconciler" in by_keyword["ENV"]
    assert "RECONCILER_STATE=/var/lib/reconciler/state" in by_keyword["ENV"]
    assert "PYTHONDONTWRITEBYTECODE=1" in by_keyword["ENV"]
    assert by_keyword["HEALTHCHECK"]
    after_user = [w[0] for w in final[[w[0] for w in final].index("USER") :]]
    assert "RUN" not in after_user
    assert "COPY" not in after_user


def advisories() -> ModuleType:
    """Return the program that compares locks with advisories."""
    spec = importlib.util.spec_from_file_location("advisories", ROOT / ".ci" / "advisories.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_record(**fields: Any) -> dict[str, Any]:
    """Return an advisory about boto3 up to 9999."""
    events = [{"introduced": "0"}, {"fixed": "9999"}]
    affected = {
        "package": {"name": "Boto3", "ecosystem": "PyPI"},
        "ranges": [{"type": "ECOSYSTEM", "events": events}],
    }
    return {"id": "PYSEC-1", "aliases": ["CVE-1"], "affected": [affected], **fields}


def a_range(*events: tuple[str, str], kind: str = "ECOSYSTEM") -> dict[str, Any]:
    ranges = [{"type": kind, "events": [{name: at} for name, at in events]}]
    return {"package": {"name": "boto3", "ecosystem": "PyPI"}, "ranges": ranges}


def found(record: dict[str, Any], ignored: dict[str, date] | None = None) -> list[str]:
    """Return the findings about a lock with boto3 1.40.0."""
    program = advisories()
    rows = program.relevant([record], frozenset({"boto3"}))
    pinned = [program.Pin("boto3", Version("1.40.0"), "requirements.lock")]
    lines: list[str] = program.findings(pinned, rows, ignored or {}, date(2026, 1, 2))
    return lines


@attack(Threat.SUPPLY_CHAIN, "a locked version with a flaw that is known")
@pytest.mark.parametrize(
    ("affected", "is_found"),
    [
        (a_range(("introduced", "0"), ("fixed", "1.40.1")), True),
        (a_range(("introduced", "0"), ("fixed", "1.40.0")), False),
        (a_range(("introduced", "1.40.0")), True),
        (a_range(("introduced", "1.40.1")), False),
        (a_range(("introduced", "0"), ("last_affected", "1.40.0")), True),
        (a_range(("introduced", "0"), ("last_affected", "1.39.9")), False),
        (a_range(("introduced", "1"), ("fixed", "1.2"), ("introduced", "1.40")), True),
        (a_range(("fixed", "1.40.1"), ("introduced", "1.39"), ("fixed", "1.2")), True),
        (a_range(("introduced", "0"), kind="GIT"), False),
        ({"package": {"name": "boto3", "ecosystem": "PyPI"}, "versions": ["1.40"]}, True),
        ({"package": {"name": "boto3", "ecosystem": "npm"}, "versions": ["1.40"]}, False),
        ({"package": {"name": "boto4", "ecosystem": "PyPI"}, "versions": ["1.40"]}, False),
        ({"package": {"name": "boto3", "ecosystem": "PyPI"}, "versions": ["odd", "1.40"]}, True),
    ],
    ids=range(13),
)
def test_a_package_with_a_known_flaw_is_named(affected: dict[str, Any], is_found: bool) -> None:
    lines = found(a_record(affected=[affected]))
    assert bool(lines) is is_found
    assert all("requirements.lock: boto3 1.40.0" in line and "CVE-1" in line for line in lines)


@attack(Threat.SUPPLY_CHAIN, "a flaw that is ignored without a reason or an end")
def test_a_flaw_is_ignored_with_a_reason_and_until_a_day(tmp_path: Path) -> None:
    assert found(a_record())
    assert not found(a_record(withdrawn="2026-01-01T00:00:00Z"))
    assert not found(a_record(), {"CVE-1": date(2026, 1, 2)})
    assert found(a_record(), {"CVE-1": date(2026, 1, 1)})
    read = advisories().read_ignored
    path = tmp_path / "ignored.toml"
    path.write_text('[CVE-1]\nreason = "no part of it is called"\nuntil = 2026-01-02\n')
    assert read(path) == {"CVE-1": date(2026, 1, 2)}
    for text in (
        "reason = 'later'",
        "until = 2026-01-02",
        "reason = 'it is fine'\nuntil = 'never'",
    ):
        path.write_text(f"[CVE-1]\n{text}\n")
        with pytest.raises(ValueError, match="CVE-1 needs a reason and a day"):
            read(path)


def test_the_locks_are_compared_with_the_stored_advisories_in_every_run(tmp_path: Path) -> None:
    assert "python .ci/advisories.py\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    program = advisories()
    assert {path.name for path in program.locks()} == {path.name for path in LOCKS}
    names = {pin.name for pin in program.pins(program.locks())}
    assert names == {canonicalize_name(r.name) for lock in LOCKS for r, _ in pins(lock).values()}
    stored = json.loads(program.STORED.read_text(encoding="utf-8"))["advisories"]
    assert len({row["id"] for row in stored}) > 50
    assert {row["package"] for row in stored} <= names
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "advisories.py")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(" 0 findings\n")


def test_a_database_is_read_from_files_of_either_form(tmp_path: Path) -> None:
    (tmp_path / "boto3").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "odd.json").write_text(json.dumps(a_record(id="PYSEC-9")))
    (tmp_path / "boto3" / "PYSEC-1.yaml").write_text(json.dumps(a_record()))
    (tmp_path / "boto3" / "PYSEC-2.json").write_text(json.dumps(a_record(id="PYSEC-2")))
    (tmp_path / "boto3" / "README.md").write_text("not a record")
    program = advisories()
    rows = program.relevant(program.read_database(tmp_path), frozenset({"boto3"}))
    assert [row["id"] for row in rows] == ["PYSEC-1", "PYSEC-2"]
