"""The environment that a page installs, made of the distributions of this one: without network."""

from __future__ import annotations

import re
import sys
import venv
from collections import defaultdict
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)
_COMMAND = """\
#!{python}
import sys
from reconciler.cli.main import main
sys.exit(main())
"""


def pinned(lock: str) -> set[str]:
    """Return the names of the distributions that a lock file pins."""
    return {_normalized(name) for name in _PINNED.findall((ROOT / lock).read_text())}


def make_environment(folder: Path, locks: tuple[str, ...]) -> Path:
    """Make a virtual environment with what ``locks`` pin and this project; return its programs.

    A distribution that none of them pins cannot be imported there, although it is installed here.

    Raises:
        LookupError: a distribution that is pinned for this platform is not installed here.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    names = set.union(*map(pinned, locks))
    for name in sorted(names & set(_installed())):
        _link(_installed()[name], names, site)
    (site / "reconciler.pth").write_text(f"{ROOT}\n")
    command = folder / "bin" / "reconciler"
    command.write_text(_COMMAND.format(python=folder / "bin" / "python"))
    command.chmod(0o755)
    return command.parent


def _link(found: Distribution, names: set[str], site: Path) -> None:
    """Link a distribution, file by file only where it shares a folder with one that is left out."""
    for file in found.files or ():
        path = Path(str(found.locate_file(file)))
        top = file.parts[0]
        if top == ".." or not path.exists():
            continue
        if _owners()[top] <= names:
            target, source = site / top, path.parents[len(file.parts) - 1] / top
        else:
            target, source = site / file, path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)


@cache
def _installed() -> dict[str, Distribution]:
    return {_normalized(one.metadata["Name"]): one for one in distributions()}


@cache
def _owners() -> dict[str, set[str]]:
    """Return the distributions with files in each folder or file of site-packages."""
    owners: dict[str, set[str]] = defaultdict(set)
    for name, one in _installed().items():
        for file in one.files or ():
            owners[file.parts[0]].add(name)
    return owners


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
