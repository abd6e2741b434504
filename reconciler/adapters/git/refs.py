"""Names of commits: which one a ref means.

git prefers a tag to a branch of the same name. Whoever may push a tag could so choose what a job or
a daemon reads in place of a protected branch. So a name of several refs is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from reconciler.adapters.git.command import NO_REASON, GitFailedError
from reconciler.adapters.git.repository import RepositoryView
from reconciler.model.errors import UsageError
from reconciler.model.text.quoting import quote_value

_REF_MAX: Final = 1000
_FOLDERS: Final = ("refs/tags", "refs/heads", "refs/remotes")
_EXPRESSION: Final = re.compile(r"[~^:]|@\{")
"""What ends a name in an expression, such as ``main~2``."""
_FORM: Final = "--format=%(refname)%00%(objectname)%00%(*objectname)%00"


def commit_of(view: RepositoryView, ref: str) -> str:
    """Return the full id of the commit that ``ref`` names in a repository.

    Raises:
        UsageError: ``ref`` is not a valid ref or names several, or the commit does not exist.
        UnreadableError: git cannot read the repository.
    """
    if not ref or ref.startswith("-") or len(ref) > _REF_MAX or not ref.isprintable():
        raise UsageError(f"{quote_value(ref)} is not a valid ref", where=view.where)
    name = _EXPRESSION.split(ref, maxsplit=1)[0]
    commits = {} if name in ("", "@", "HEAD") else _refs_named(view, name)
    remedy = "pass a branch, a tag or a fetched commit"
    if name.startswith("refs/"):
        if name not in commits:  # git would look for it below refs/tags
            raise UsageError(f"commit {ref} not found", where=view.where, remedy=remedy)
    else:
        expect_one(name, commits, view.where)
    arguments = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    try:
        return view.run(*arguments).decode().strip()
    except GitFailedError as error:
        if error.git_message != NO_REASON:
            raise
        raise UsageError(f"commit {ref} not found", where=view.where, remedy=remedy) from error


def expect_one(name: str, commits: Mapping[str, str], where: str) -> None:
    """Refuse a name of several refs with different commits, which are by ref.

    Raises:
        UsageError: it is one.
    """
    if len(set(commits.values())) > 1:
        remedy = f"pass {' or '.join(sorted(commits))}, or delete one of them"
        raise UsageError(f'"{name}" is the name of several refs', where=where, remedy=remedy)


def _refs_named(view: RepositoryView, name: str) -> dict[str, str]:
    """Return the objects of the refs with a name, by ref; a tag stands for what it is of."""
    refs = [f"{folder}/{name}" for folder in _FOLDERS]
    if name.startswith("refs/"):
        refs.append(name)
    parts = [part.removeprefix("\n") for part in view.records("for-each-ref", _FORM, *refs)]
    found = zip(parts[::3], parts[1::3], parts[2::3], strict=False)
    # what is asked for is also read as the folder of further refs
    return {ref: peeled or oid for ref, oid, peeled in found if ref in refs}
