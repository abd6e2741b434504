"""The build of the program: its version, and the commit that it was built from."""

from __future__ import annotations

import os

from reconciler import __version__

_SHOWN = 12
"""How many digits of a commit are shown."""


def describe_build() -> str:
    """Return ``reconciler 1.2.3 (commit 0123456789ab, 2026-01-31)``.

    Without the facts of a build, the commit is that of the clone. Without either, there is only
    the version.
    """
    commit, origin = _commit()
    facts = f" (commit {commit[:_SHOWN]}, {origin})" if commit else ""
    return f"reconciler {__version__}{facts}"


def release() -> str:
    """Return the version without its development suffix: that of the next release."""
    return __version__.partition(".dev")[0]


def ref() -> str:
    """Return the git ref of this build: the tag of a release, or the commit.

    A development version whose commit is unknown is ``main``.
    """
    if __version__ == release():
        return f"v{__version__}"
    return _commit()[0] or "main"


def _commit() -> tuple[str, str]:
    """Return the commit and when or from where it was built; both are empty if unknown."""
    try:
        from reconciler import _build  # type: ignore[attr-defined]
    except ImportError:
        commit = _clone_commit()
        return commit, "from a clone" if commit else ""
    return _build.COMMIT, _build.DATE


def _clone_commit() -> str:
    """Return the commit that is checked out, read without running git, to start fast."""
    git = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".git")
    head = _read_text(os.path.join(git, "HEAD"))
    if head.startswith("ref: "):
        name = head.removeprefix("ref: ")
        rows = _read_text(os.path.join(git, "packed-refs")).splitlines()
        packed = (row.split(" ")[0] for row in rows if row.endswith(f" {name}"))
        head = _read_text(os.path.join(git, name)) or next(packed, "")
    return head if head.isalnum() else ""


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
