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
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.hostile.threats import Threat, attack
from tests.yamltext import load

ROOT = Path(__file__).resolve().parents[2]
COMPLETE = ROOT / "requirements.lock"
LOCKS = [COMPLETE, *sorted((ROOT / "requirements").glob("*.lock"))]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, BUILD = PYPROJECT["project"], PYPROJECT["build-system"]["requires"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
INSTALLING = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Dockerfile", *WORKFLOWS)


def program(name: str) -> ModuleType:
    """Return a program of ``.ci``."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / ".ci")
        spec.loader.exec_module(module)
    return module


LOCKING = program("locks")


@attack(Threat.SUPPLY_CHAIN, "a published file replaced by another of the same version")
def test_a_file_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    forged = tmp_path / "six-1.17.0-py2.py3-none-any.whl"
    with zipfile.ZipFile(forged, "w") as wheel:
        wheel.writestr("six.py", "open('ran', 'w')")
        wheel.writestr("six-1.17.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: six\n")
        wheel.writestr("six-1.17.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("six-1.17.0.dist-info/RECORD", "")
    six = next(row for row in LOCKING.read_lock(COMPLETE) if row.name == "six")
    wanted = tmp_path / "wanted.txt"
    hashes = " ".join(f"--hash={digest}" for digest in sorted(six.hashes))
    wanted.write_text(f"{six.requirement} {hashes}\n", encoding="utf-8")
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
    assert LOCKING.read_lock(lock)


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
    assert LOCKING.read_lock(lock)
    lock.write_text(f"{lock.read_text(encoding='utf-8')}{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"x\.lock: "):
        LOCKING.read_lock(lock)


@attack(Threat.SUPPLY_CHAIN, "a dependency that is declared but not locked")
def test_the_lock_contains_every_declared_dependency_within_its_bounds() -> None:
    locked: dict[str, list[str]] = {}
    for row in LOCKING.read_lock(COMPLETE):
        locked.setdefault(row.name, []).append(row.version)
    declared = [*PROJECT["dependencies"]]
    for extra in PROJECT["optional-dependencies"].values():
        declared += extra
    for text in declared:
        wanted = Requirement(text)
        versions = locked[canonicalize_name(wanted.name)]
        assert all(wanted.specifier.contains(v) for v in versions), text
        assert ">=" in text, f"{text} has no lower bound"


def _required_by(name: str, extras: frozenset[str], *, here: bool) -> list[Requirement]:
    """Return what an installed package requires ``here``, or on any platform, with some extras."""
    found = []
    for text in importlib.metadata.requires(name) or []:
        requirement = Requirement(text)
        wanted = [{"extra": extra} for extra in (extras or {""})]
        is_conditional = here or "extra" in str(requirement.marker or "")
        applies = requirement.marker is None or any(map(requirement.marker.evaluate, wanted))
        if applies or not is_conditional:
            found.append(requirement)
    return found


def _reachable(declared: list[str], *, here: bool = False) -> set[str]:
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
            todo += _required_by(*key, here=here)
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform or group
    return {name for name, _ in seen}


@attack(Threat.SUPPLY_CHAIN, "a package with a similar name in a lock, which nothing requires")
@pytest.mark.parametrize("name", ["requirements.lock", "production.lock", "action.lock"])
def test_every_locked_package_is_required_by_what_is_declared(name: str) -> None:
    """Guard: the metadata of the packages. A line that somebody adds to a lock leads to none."""
    groups = PYPROJECT["dependency-groups"].values()
    declared = [*PROJECT["dependencies"], *BUILD]
    for more in (*PROJECT["optional-dependencies"].values(), *groups):
        declared += [text for text in more if isinstance(text, str)]
    (lock,) = (path for path in LOCKS if path.name == name)
    locked = {row.name for row in LOCKING.read_lock(lock)}
    assert (locked | {"boto33"}) - _reachable(declared) == {"boto33"}


def _missing(lock: Path, rows: list[Any]) -> set[str]:
    """Return what a profile needs on this machine, and its lock does not have."""
    profiles = program("lock").PROFILES
    extras = profiles[str(lock.relative_to(ROOT))]
    groups = [PROJECT["optional-dependencies"][extra] for extra in extras]
    declared = [*PROJECT["dependencies"], *BUILD, *(text for group in groups for text in group)]
    return _reachable(declared, here=True) - {row.name for row in rows} - {"reconciler"}


@attack(Threat.SUPPLY_CHAIN, "a package taken out of a lock, for another one to be installed")
@pytest.mark.parametrize("name", ["requirements.lock", "production.lock", "embedded.lock"])
def test_every_required_package_is_locked(name: str) -> None:
    """Guard: the metadata of the packages. The first package that is left out is named."""
    (lock,) = (path for path in LOCKS if path.name == name)
    rows = LOCKING.read_lock(lock)
    assert _missing(lock, rows) == set()
    for gone in ("attrs", "idna", "hatchling"):
        assert _missing(lock, [row for row in rows if row.name != gone]) == {gone}


def a_copy(folder: Path) -> Path:
    """Copy every lock, and return the folder."""
    for lock in LOCKS:
        copy = folder / lock.relative_to(ROOT)
        copy.parent.mkdir(exist_ok=True)
        copy.write_text(lock.read_text(encoding="utf-8"), encoding="utf-8")
    return folder


def _entry(text: str, name: str) -> str:
    """Return the lines of a package in a lock."""
    found = re.search(rf"^{re.escape(name)}==(.*\\\n)*.*\n", text, re.MULTILINE)
    assert found is not None
    return found[0]


LOCK_CHANGES: dict[str, Callable[[str], str]] = {
    "another hash": lambda entry: re.sub(r"sha256:\w{4}", "sha256:0000", entry, count=1),
    "one hash more": lambda entry: entry.rstrip("\n") + f" \\\n    --hash=sha256:{'0' * 64}\n",
    "a hash less": lambda entry: re.sub(r" \\\n    --hash=\S+\n$", "\n", entry),
    "another version": lambda entry: re.sub(r"==[\w.]+", "==0.0.1", entry, count=1),
}


@attack(Threat.SUPPLY_CHAIN, "a line of one lock that was changed: a hash, a version, a package")
@pytest.mark.parametrize("change", LOCK_CHANGES.values(), ids=LOCK_CHANGES)
@pytest.mark.parametrize("lock", ["requirements.lock", "production.lock", "embedded.lock"])
def test_a_changed_line_of_a_lock_is_named(
    lock: str, change: Callable[[str], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = a_copy(tmp_path)
    assert LOCKING.main([], root) == 0
    (path,) = (path for path in LOCKING.locks(root) if path.name == lock)
    text = path.read_text(encoding="utf-8")
    entry = _entry(text, "attrs")
    path.write_text(text.replace(entry, change(entry)), encoding="utf-8")
    assert LOCKING.main([], root) == 1
    assert "attrs " in capsys.readouterr().out


@attack(Threat.SUPPLY_CHAIN, "a package that only a smaller lock has")
def test_a_package_that_only_the_image_has_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = a_copy(tmp_path)
    path = root / "requirements" / "production.lock"
    line = f"boto33==1.0 --hash=sha256:{'0' * 64}\n"
    path.write_text(path.read_text(encoding="utf-8") + line, encoding="utf-8")
    assert LOCKING.main([], root) == 1
    assert "boto33 1.0 is in production.lock, and not in " in capsys.readouterr().out


def a_bill(rows: list[Any]) -> dict[str, Any]:
    """Return a bill of materials of these lines, as CycloneDX writes one."""
    return {
        "bomFormat": "CycloneDX",
        "components": [
            {"type": "library", "name": row.requirement.name, "version": row.version}
            for row in rows
            if row.applies_here
        ],
    }


BILL_CHANGES: dict[str, tuple[Callable[[list[dict[str, str]]], object], str]] = {
    "one less": (lambda c: c.pop(), "is not listed"),
    "one more": (
        lambda c: c.append({"name": "boto33", "version": "1.0"}),
        "boto33 1.0 is listed, and not locked",
    ),
    "another version": (lambda c: c[0].update(version="0.0.1"), "0.0.1 is listed, and not locked"),
    "nothing": (lambda c: c.clear(), "is not listed"),
}


@attack(Threat.SUPPLY_CHAIN, "a bill of materials that differs from what is installed")
@pytest.mark.parametrize(("change", "finding"), BILL_CHANGES.values(), ids=BILL_CHANGES)
def test_a_changed_bill_of_materials_is_named(
    change: Callable[[list[dict[str, str]]], object],
    finding: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: ``.ci/locks.py --sbom``, with which ``.ci/sbom`` ends."""
    bill = a_bill(LOCKING.read_lock(LOCKING.IMAGE))
    path = tmp_path / "sbom.json"
    path.write_text(json.dumps(bill), encoding="utf-8")
    assert LOCKING.main(["--sbom", str(path)]) == 0
    change(bill["components"])
    path.write_text(json.dumps(bill), encoding="utf-8")
    capsys.readouterr()
    assert LOCKING.main(["--sbom", str(path)]) == 1
    assert finding in capsys.readouterr().out
    assert '.ci/locks.py --sbom "$file"\n' in (ROOT / ".ci" / "sbom").read_text(encoding="utf-8")
    assert "python .ci/locks.py\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


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


def used_actions(value: object) -> Iterator[str]:
    """Yield every action and reusable workflow that a file names, at any depth."""
    if isinstance(value, list):
        for item in value:
            yield from used_actions(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "uses":
                yield str(item)
            yield from used_actions(item)


def unpinned(text: str) -> list[str]:
    """Return the actions of a file that are not pinned by commit."""
    used = list(used_actions(load(text)))
    assert used
    return [action for action in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)]


@attack(Threat.SUPPLY_CHAIN, "an action whose tag is moved to other code")
@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.name)
def test_every_action_is_pinned_by_commit(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert unpinned(text) == []
    moved = re.sub(r"@[0-9a-f]{40}", "@v4", text, count=1)
    assert len(unpinned(moved)) == 1
    if path in WORKFLOWS:
        assert load(text)["permissions"] == {"contents": "read"}


@attack(Threat.SUPPLY_CHAIN, "an action named by a branch, a short commit, an image or a path")
@pytest.mark.parametrize(
    "action",
    [
        "actions/checkout", "actions/checkout@main", "actions/checkout@v7.0.1",
        "actions/checkout@3d3c42e", "docker://alpine:3", "./local", "a/b@" + "G" * 40,
        f"a/b@{'a' * 40}:latest",
    ],
)  # fmt: skip
def test_an_action_that_can_move_is_named(action: str) -> None:
    step = json.dumps({"jobs": {"a": {"steps": [{"uses": action}]}}})
    workflow = json.dumps({"jobs": {"a": {"uses": action}}})
    assert unpinned(step) == unpinned(workflow) == [action]


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
    scan = program("advisories")
    rows = scan.relevant([record], frozenset({"boto3"}))
    pinned = [scan.Pin("boto3", Version("1.40.0"), "requirements.lock")]
    lines: list[str] = scan.findings(pinned, rows, ignored or {}, date(2026, 1, 2))
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
    read = program("advisories").read_ignored
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
    scan = program("advisories")
    assert {path.name for path in scan.locks()} == {path.name for path in LOCKS}
    names = {pin.name for pin in scan.pins(scan.locks())}
    assert names == {row.name for lock in LOCKS for row in LOCKING.read_lock(lock)}
    stored = json.loads(scan.STORED.read_text(encoding="utf-8"))["advisories"]
    assert len({row["id"] for row in stored}) > 50
    assert {row["package"] for row in stored} <= names
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "advisories.py")],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(" 0 findings\n")


@attack(Threat.SUPPLY_CHAIN, "a database of advisories that is empty, or of another layout")
def test_a_database_without_advisories_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``read_relevant``. Without it, no flaw is found from then on."""
    scan = program("advisories")
    stored = tmp_path / "advisories.json"
    stored.write_bytes(scan.STORED.read_bytes())
    monkeypatch.setattr(scan, "STORED", stored)
    clone = tmp_path / "clone"
    (clone / "vulns").mkdir(parents=True)
    (clone / "vulns" / "boto3.txt").write_text(json.dumps(a_record()))
    before = stored.read_bytes()
    assert scan.main(["--update", str(clone)]) == 2
    assert "has none about a locked package" in capsys.readouterr().err
    assert stored.read_bytes() == before


def test_a_database_is_read_from_files_of_either_form(tmp_path: Path) -> None:
    (tmp_path / "boto3").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "odd.json").write_text(json.dumps(a_record(id="PYSEC-9")))
    (tmp_path / "boto3" / "PYSEC-1.yaml").write_text(json.dumps(a_record()))
    (tmp_path / "boto3" / "PYSEC-2.json").write_text(json.dumps(a_record(id="PYSEC-2")))
    (tmp_path / "boto3" / "README.md").write_text("not a record")
    scan = program("advisories")
    rows = scan.relevant(scan.read_database(tmp_path), frozenset({"boto3"}))
    assert [row["id"] for row in rows] == ["PYSEC-1", "PYSEC-2"]
