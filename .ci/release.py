"""The checks and texts of a release.

``check TAG``   the tag, the Helm chart and the changelog agree
``notes TAG``   print the section of the version in the changelog
``hashes DIR``  write SHA256SUMS of the files in a folder
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "reconciler" / "Chart.yaml"
_VERSION = re.compile(r"^appVersion: (\S+)$", re.MULTILINE)
_TAG = re.compile(r"v(\d+\.\d+\.\d+)")


def find_problems(tag: str, chart: str, changelog: str) -> list[str]:
    """Return the reasons why a tag cannot be released."""
    match = _TAG.fullmatch(tag)
    if match is None:
        return [f'the tag "{tag}" is not of the form v1.2.3']
    found = _VERSION.search(chart)
    problems = []
    if found is None or found[1] != match[1]:
        has = found[1] if found else "no appVersion"
        problems.append(f"the tag is {tag}, but the Helm chart has {has}")
    if not release_notes(tag, changelog):
        problems.append(f'CHANGELOG.md has no text under "## {match[1]}"')
    return problems


def release_notes(tag: str, changelog: str) -> str:
    """Return the section of a version in the changelog, empty if there is none."""
    heading = re.compile(rf"^## \[?{re.escape(tag.removeprefix('v'))}\]?(?: .*)?$", re.MULTILINE)
    found = heading.search(changelog)
    if found is None:
        return ""
    return re.split(r"^## ", changelog[found.end() :], maxsplit=1, flags=re.MULTILINE)[0].strip()


def checksums(folder: Path) -> str:
    """Return the SHA-256 of each file as sha256sum prints it."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in files)


def main(words: list[str]) -> int:
    """Run a command; return 1 if a check fails."""
    command, value = words
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if command == "hashes":
        folder = Path(value)
        (folder / "SHA256SUMS").write_text(checksums(folder), encoding="utf-8")
    elif command == "notes":
        print(release_notes(value, changelog))
    else:
        problems = find_problems(value, CHART.read_text(encoding="utf-8"), changelog)
        print(
            "\n".join(f"::error::{problem}" for problem in problems) or f"{value} can be released"
        )
        return bool(problems)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
