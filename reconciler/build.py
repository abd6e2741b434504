"""Which build of the program this is: its version, and the commit that it was made from."""

from __future__ import annotations

import os

from reconciler import __version__

_SHOWN = 12
"""How many digits of a commit are shown."""


def described() -> str:
    """Return ``reconciler 1.2.3 (commit 0123456789ab, 2026-01-31)``.

    Without the facts of a build, a clone tells its commit. Where there is neither, the version
    stands alone.
    """
    commit, origin = _commit()
    facts = f" (commit {commit[:_SHOWN]}, {origin})" if commit else ""
    return f"reconciler {__version__}{facts}"


def release() -> str:
    """Return the version without what marks a development version: that of the next release."""
    return __version__.partition(".dev")[0]


def ref() -> str:
    """Return what to fetch this build by from its repository: the tag of a release, or the commit.

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
        commit = _of_the_clone()
        return commit, "from a clone" if commit else ""
    return _build.COMMIT, _build.DATE


def _of_the_clone() -> str:
    """Return the commit that is checked out, read without git: starting fast is a promise."""
    git = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".git")
    head = _text(os.path.join(git, "HEAD"))
    if head.startswith("ref: "):
        name = head.removeprefix("ref: ")
        rows = _text(os.path.join(git, "packed-refs")).splitlines()
        packed = (row.split(" ")[0] for row in rows if row.endswith(f" {name}"))
        head = _text(os.path.join(git, name)) or next(packed, "")
    return head if head.isalnum() else ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
