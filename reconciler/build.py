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
    facts = _of_the_build() or _of_the_clone()
    return f"reconciler {__version__}" + (f" ({facts})" if facts else "")


def _of_the_build() -> str:
    try:
        from reconciler import _build  # type: ignore[attr-defined]
    except ImportError:
        return ""
    return f"commit {_build.COMMIT}, {_build.DATE}"


def _of_the_clone() -> str:
    """Return the commit that is checked out, read without git: starting fast is a promise."""
    git = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".git")
    head = _text(os.path.join(git, "HEAD"))
    if head.startswith("ref: "):
        name = head.removeprefix("ref: ")
        rows = _text(os.path.join(git, "packed-refs")).splitlines()
        packed = (row.split(" ")[0] for row in rows if row.endswith(f" {name}"))
        head = _text(os.path.join(git, name)) or next(packed, "")
    return f"commit {head[:_SHOWN]}, from a clone" if head.isalnum() else ""


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""
