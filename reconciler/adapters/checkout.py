"""Tells a checkout, whose links a stranger may have made, from the folders of the user above it."""

from __future__ import annotations

import os
from typing import Final

from reconciler.model.errors import UnreadableError

_GIT: Final = ".git"


def checkout_of(path: str) -> str:
    """Return the outermost folder above a path that has a ``.git``, empty if there is none.

    A ``.git`` further down may be part of the checkout, and must not make links the user's.
    """
    above, found = os.path.dirname(os.path.abspath(path)), ""
    while True:
        if os.path.lexists(os.path.join(above, _GIT)):
            found = above
        parent = os.path.dirname(above)
        if parent == above:
            return found
        above = parent


def refuse_link_out(path: str) -> None:
    """Refuse a path that a link of the checkout leads out of it, or into its ``.git``.

    The author of a pull request can put a link in the place of a file or folder that a CI job
    names: to the variables of the process, to a token, or to credentials in ``.git``. Messages
    would quote them.

    Raises:
        UnreadableError: a link below the top of the checkout leads there.
    """
    top = checkout_of(path)
    if not top:
        return
    folder, real = os.path.realpath(top), os.path.realpath(path)
    if real == os.path.join(folder, os.path.relpath(os.path.abspath(path), top)):
        return
    parts = os.path.relpath(real, folder).split(os.sep)
    if parts[0] == os.pardir or any(part.casefold() == _GIT for part in parts):
        raise UnreadableError(
            "a symbolic link leads out of the checkout",
            where=path,
            remedy="pass the place to which it leads",
        )
