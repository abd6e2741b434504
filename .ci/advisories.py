"""Compare every lock with the known advisories about its packages.

``python .ci/advisories.py`` reads ``requirements/advisories.json``, so it needs no network.
``--update DIR`` first replaces that file from a clone of github.com/pypa/advisory-database, or of
another folder with records of OSV. It keeps what concerns a package of a lock, so that a change of
the advisories is a commit that somebody reviews. A workflow does so every day.

An advisory that does not matter here is in ``requirements/advisories-ignored.toml`` with a reason
and a last day. Exit code: 0 without findings, 1 with, 2 for data that cannot be read.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from locks import locks, read_lock, report
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "requirements" / "advisories.json"
IGNORED = ROOT / "requirements" / "advisories-ignored.toml"
Record = dict[str, Any]


class Pin(NamedTuple):
    """A package of a lock, and the lock."""

    name: str
    version: Version
    lock: str


def pins(paths: Iterable[Path]) -> list[Pin]:
    """Return the packages of locks, in order."""
    found = {Pin(row.name, Version(row.version), p.name) for p in paths for row in read_lock(p)}
    return sorted(found)


def is_affected(version: Version, affected: Mapping[str, Any]) -> bool:
    """Return whether a version is named, or lies in a range, of one package of an OSV record.

    A version that nobody can compare counts as affected only if it is named.
    """
    if any(_version(text) == version for text in affected.get("versions", ())):
        return True
    ranges = [r for r in affected.get("ranges", ()) if r.get("type") in ("ECOSYSTEM", "SEMVER")]
    return any(_is_within(version, known.get("events", ())) for known in ranges)


def _is_within(version: Version, events: Iterable[Mapping[str, str]]) -> bool:
    """Return whether a version is vulnerable by the events of a range (OSV schema, ``events``)."""
    rows = []
    for event in events:
        for kind, text in event.items():
            at = Version("0") if text == "0" else _version(text)
            if at is not None:
                rows.append((at, ("introduced", "fixed", "last_affected").index(kind), kind))
    vulnerable = False
    for at, _, kind in sorted(row for row in rows if row[0] <= version):
        vulnerable = kind == "introduced" or (kind == "last_affected" and at == version)
    return vulnerable


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def read_database(folder: Path) -> Iterator[Record]:
    """Yield the records of OSV below a folder, in YAML or JSON."""
    from ruamel.yaml import YAML

    reader = YAML(typ="safe", pure=False)
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".yaml", ".yml", ".json") and not _is_hidden(path, folder):
            text = path.read_text(encoding="utf-8")
            found = json.loads(text) if path.suffix == ".json" else reader.load(text)
            if isinstance(found, dict) and "affected" in found:
                yield found


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def relevant(records: Iterable[Record], names: frozenset[str]) -> list[Record]:
    """Return what records say about packages of these names, without those that were withdrawn."""
    found = []
    for record in records:
        if record.get("withdrawn"):
            continue
        for affected in record["affected"]:
            package = affected.get("package", {})
            name = canonicalize_name(package.get("name", ""))
            if package.get("ecosystem") == "PyPI" and name in names:
                row = {"id": record["id"], "aliases": sorted(record.get("aliases") or ())}
                kept = [r for r in affected.get("ranges") or () if r.get("type") != "GIT"]
                kept = [{"type": r["type"], "events": r["events"]} for r in kept]
                versions = [] if kept else sorted(affected.get("versions") or ())
                found.append({**row, "package": name, "ranges": kept, "versions": versions})
    return sorted(found, key=lambda row: (row["package"], row["id"]))


def read_relevant(folder: Path, names: frozenset[str]) -> list[Record]:
    """Return what a database says about packages of these names.

    Raises:
        ValueError: it says nothing, as an empty clone does, or a database of another layout.
    """
    rows = relevant(read_database(folder), names)
    if not rows:
        raise ValueError(f"{folder} has none about a locked package")
    return rows


def findings(
    pinned: Iterable[Pin], advisories: Sequence[Record], ignored: Mapping[str, date], today: date
) -> list[str]:
    """Return a line for each vulnerable package; an advisory is ignored up to its last day."""
    lines = []
    for pin in pinned:
        for row in advisories:
            if row["package"] != pin.name or not is_affected(pin.version, row):
                continue
            names = (row["id"], *row["aliases"])
            if not any(name in ignored and today <= ignored[name] for name in names):
                called = ", ".join(names)
                lines.append(f"{pin.lock}: {pin.name} {pin.version} has a known flaw: {called}")
    return lines


def read_ignored(path: Path) -> dict[str, date]:
    """Return the last day of each advisory that is ignored.

    Raises:
        ValueError: one has no reason or no last day.
    """
    if not path.exists():
        return {}
    found = {}
    for name, row in tomllib.loads(path.read_text(encoding="utf-8")).items():
        if not re.search(r"\w+ \w+", row.get("reason", "")) or type(row.get("until")) is not date:
            raise ValueError(f"{path.name}: {name} needs a reason and a day in `until`")
        found[name] = row["until"]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the locks, with ``--update`` after replacing the stored advisories."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--update", type=Path, metavar="DIR", help="a clone of the database")
    wanted = parser.parse_args(arguments)
    today = datetime.now(UTC).date()
    pinned = pins(locks())
    try:
        if wanted.update is not None:
            names = frozenset(pin.name for pin in pinned)
            rows = read_relevant(wanted.update, names)
            text = json.dumps({"advisories": rows}, indent=1, sort_keys=True) + "\n"
            STORED.write_text(text, encoding="utf-8")
        advisories = json.loads(STORED.read_text(encoding="utf-8"))["advisories"]
        lines = findings(pinned, advisories, read_ignored(IGNORED), today)
    except (OSError, ValueError, KeyError) as error:
        print(f"the advisories cannot be read: {error}", file=sys.stderr)
        return 2
    return report(lines, f"{len(pinned)} locked packages, {len(advisories)} advisories")


if __name__ == "__main__":
    sys.exit(main())
