"""The operator's configuration file: settings that no repository can change.

It has the form of ``reconciler.yaml`` and wins over it. It must lie outside the repository of the
fleet, or a pull request could change it as well.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from reconciler.desired.settings.layers import OperatorFile

_VARIABLE: Final = "RECONCILER_CONFIG"
_REMEDY: Final = "pass a file outside the repository"


def read_operator_file(named: str | None, folder: str | None) -> OperatorFile | None:
    """Return the file that the flag or the variable names; None where neither does.

    ``folder`` is the fleet's on this machine, None where it comes from a remote.

    Raises:
        UsageError: it lies inside the fleet's repository, or something in it is wrong.
        UnreadableError: it cannot be read.
    """
    path = named or os.environ.get(_VARIABLE)
    if not path:
        return None
    from reconciler.desired.settings.layers import OperatorFile
    from reconciler.model.errors import UnreadableError

    flag = "--config" if named else _VARIABLE
    if folder is not None:
        _expect_outside(path, folder, flag)
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs a start
            content = file.read()
    except OSError as error:
        why = error.strerror or str(error)
        remedy = "pass a readable file"
        raise UnreadableError(why, where=f"{flag} {path}", remedy=remedy) from error
    return OperatorFile(os.path.abspath(path), _data(path, content))  # noqa: PTH100


def _expect_outside(path: str, folder: str, flag: str) -> None:
    from reconciler.adapters.git.command import is_inside
    from reconciler.adapters.git.repository import find
    from reconciler.model.errors import UsageError

    real = os.path.realpath(folder)
    repository = find(real)
    tree = repository.top if repository is not None else real
    as_named = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))  # noqa: PTH118, PTH119, PTH120
    if is_inside(as_named, tree) or is_inside(os.path.realpath(path), tree):
        what = "the operator's configuration file is inside the fleet's repository"
        raise UsageError(what, where=f"{flag} {path}", remedy=_REMEDY)


def _data(path: str, content: bytes) -> dict[str, object]:
    """Return what the file sets.

    Raises:
        UsageError: it is not valid.
    """
    from reconciler.model.errors import UsageError
    from reconciler.source import schema
    from reconciler.source.document import parse_documents
    from reconciler.source.finding import field_path
    from reconciler.source.objects import Entry

    documents, diagnostics = parse_documents(path, content)
    for diagnostic in diagnostics:
        where = str(diagnostic.place or path)
        raise UsageError(diagnostic.message, where=where, remedy=diagnostic.hint)
    if not documents:
        return {}
    if len(documents) > 1:
        raise UsageError("must contain exactly one document", where=str(documents[1].place()))
    entry = Entry(documents[0], (), documents[0].data)
    for fault in schema.check("reconciler.v1", entry.plain):
        place = entry.place(fault.pointer, of_key=fault.of_key)
        name = field_path(fault.pointer)
        what = f"{name}: {fault.message}" if name else fault.message
        raise UsageError(what, where=str(place), remedy=fault.hint)
    data: dict[str, object] = entry.plain
    return data
