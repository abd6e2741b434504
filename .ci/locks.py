"""Check that the locks agree with each other, and a bill of materials with what it describes.

``python .ci/locks.py`` compares every lock: each line is one version with its hashes, a version has
the same hashes wherever it is locked, and the locks of the profiles have the same versions.
``--sbom FILE`` compares a bill of materials with the lock of the container image, as far as that
applies to this machine and Python.

A line that somebody changed, added or removed is named. Exit code: 0 if all agree, 1 if not, 2 for
a file that cannot be read.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
IMAGE = ROOT / "requirements" / "production.lock"
OWN_VERSIONS = frozenset({"docs.lock", "release.lock"})
"""Locks of tools that share no environment with the others, and may have other versions."""

_VERSION = re.compile(r"==[^*,]+")
_HASH = re.compile(r"sha256:[0-9a-f]{64}")


class Locked(NamedTuple):
    """A line of a lock."""

    requirement: Requirement
    hashes: frozenset[str]

    @property
    def name(self) -> str:
        """The normalised name of the package."""
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        """The one version."""
        return str(self.requirement.specifier).removeprefix("==")

    @property
    def applies_here(self) -> bool:
        """Whether it is installed on this machine and Python."""
        marker = self.requirement.marker
        return marker is None or marker.evaluate()


def locks(root: Path = ROOT) -> list[Path]:
    """Return every lock of the repository; the complete one is first."""
    return [root / "requirements.lock", *sorted((root / "requirements").glob("*.lock"))]


def read_lock(path: Path) -> list[Locked]:
    """Return the lines of a lock.

    Raises:
        ValueError: a line is not one version with its hashes.
    """
    found = []
    for line in path.read_text(encoding="utf-8").replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        text, *hashes = (part.strip() for part in line.split("--hash="))
        try:
            wanted = Requirement(text)
        except InvalidRequirement as error:
            raise ValueError(f'{path.name}: "{text}" is not a requirement') from error
        is_exact = wanted.url is None and _VERSION.fullmatch(str(wanted.specifier))
        if not is_exact or not hashes or not all(_HASH.fullmatch(digest) for digest in hashes):
            raise ValueError(f'{path.name}: "{text}" needs one version and its SHA-256 hashes')
        found.append(Locked(wanted, frozenset(hashes)))
    if not found:
        raise ValueError(f"{path.name}: locks nothing")
    return found


def differences(found: Mapping[str, Sequence[Locked]]) -> list[str]:
    """Return how the locks, by their names, contradict each other; the first one is complete."""
    lines = []
    complete = next(iter(found))
    versions = {(row.name, row.version) for row in found[complete]}
    hashes: dict[tuple[str, str], tuple[str, frozenset[str]]] = {}
    for lock, rows in found.items():
        for row in rows:
            first, known = hashes.setdefault((row.name, row.version), (lock, row.hashes))
            if known != row.hashes:
                lines.append(f"{row.name} {row.version} has other hashes in {lock} than in {first}")
            if (row.name, row.version) not in versions and lock not in OWN_VERSIONS:
                lines.append(f"{row.name} {row.version} is in {lock}, and not in {complete}")
    return lines


def unlisted(sbom: Mapping[str, Any], lock: Sequence[Locked]) -> list[str]:
    """Return how a bill of materials (CycloneDX) differs from a lock."""
    listed = {
        (canonicalize_name(item["name"]), str(item["version"])) for item in sbom["components"]
    }
    locked = {(row.name, row.version) for row in lock if row.applies_here}
    missing = [f"{name} {version} is not listed" for name, version in sorted(locked - listed)]
    return missing + [
        f"{name} {v} is listed, and not locked" for name, v in sorted(listed - locked)
    ]


def report(lines: Sequence[str], counted: str) -> int:
    """Print the findings, and their number after what was ``counted``; return the exit code."""
    for line in lines:
        print(line)
    print(f"{counted}, {len(lines)} findings")
    return 1 if lines else 0


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Compare the locks, and with ``--sbom`` a bill of materials."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sbom", type=Path, metavar="FILE", help="a bill of materials in JSON")
    wanted = parser.parse_args(arguments)
    try:
        found = {path.name: read_lock(path) for path in locks(root)}
        lines = differences(found)
        if wanted.sbom is not None:
            sbom = json.loads(wanted.sbom.read_text(encoding="utf-8"))
            lines += [f"{wanted.sbom.name}: {line}" for line in unlisted(sbom, found[IMAGE.name])]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"the locks cannot be compared: {error}", file=sys.stderr)
        return 2
    return report(lines, f"{len(found)} locks")


if __name__ == "__main__":
    sys.exit(main())
