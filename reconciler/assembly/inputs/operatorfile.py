"""The operator's configuration file: settings that no repository can change.

It has the form of ``reconciler.yaml`` and wins over it. It must lie outside the repository of the
fleet, or a pull request could change it as well. The same holds for files of policies.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from reconciler.model.decision.policy import PolicySource
from reconciler.model.errors import UsageError
from reconciler.source.document import LIMITS, parse_documents
from reconciler.source.finding import field_path

if TYPE_CHECKING:
    from reconciler.desired.settings.layers import OperatorFile
    from reconciler.model.decision.policy import Policy
    from reconciler.source.objects import Entry

_VARIABLE: Final = "RECONCILER_CONFIG"
_DECIDES: Final = {
    "reconciler.v1": "which credentials, endpoints and clusters are used",
    "policies.v1": "which plans are refused",
}
_REMEDY: Final = "pass a file outside the repository"


def operator_file_path(named: str | None) -> str | None:
    """Return the path that the flag or the variable names; None if neither does."""
    return named or os.environ.get(_VARIABLE) or None


def read_operator_file(named: str | None, folder: str | None) -> OperatorFile | None:
    """Return the file that the flag or the variable names; None if neither does.

    ``folder`` is the fleet folder on this machine, None for a remote repository.

    Raises:
        UsageError: it lies inside the fleet's repository, or something in it is wrong.
        UnreadableError: it cannot be read.
    """
    path = operator_file_path(named)
    if not path:
        return None
    from reconciler.desired.policies import policies_of
    from reconciler.desired.settings.layers import OperatorFile

    flag = "--config" if named else _VARIABLE
    if folder is not None:
        expect_outside(path, folder, flag, "the operator's configuration file")
    entry = read_document(path, "reconciler.v1")
    if entry is None:
        return OperatorFile(os.path.abspath(path), {})
    policies = policies_of(entry, PolicySource.OPERATOR)
    return OperatorFile(os.path.abspath(path), entry.pruned_data, policies)


def read_policies(path: str, folder: str | None) -> tuple[Policy, ...]:
    """Return the policies in a file of ``--policy``.

    ``folder`` is the fleet folder on this machine, None for a remote repository.

    Raises:
        UsageError: it lies inside the fleet's repository, is empty, or something in it is wrong.
        UnreadableError: it cannot be read.
    """
    from reconciler.desired.policies import policies_of

    if folder is not None:
        expect_outside(path, folder, "--policy", "the file of policies")
    entry = read_document(path, "policies.v1")
    if entry is None:  # such as a download that was cut: nothing would be forbidden
        remedy = "write `policies: []` if there are none"
        raise UsageError("the file of policies is empty", where=f"--policy {path}", remedy=remedy)
    return policies_of(entry, PolicySource.OPERATOR)


def expect_outside(path: str, folder: str, flag: str, what: str) -> None:
    """Check that a file of the operator is not in the repository of the fleet in ``folder``.

    Raises:
        UsageError: it is, so a pull request could change it.
    """
    from reconciler.adapters.git.command import is_inside
    from reconciler.adapters.git.repository import find_repository

    real = os.path.realpath(folder)
    repository = find_repository(real)
    tree = repository.top if repository is not None else real
    as_named = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
    if is_inside(as_named, tree) or is_inside(os.path.realpath(path), tree):
        message = f"{what} is inside the fleet's repository, where a pull request can change it"
        raise UsageError(message, where=f"{flag} {path}", remedy=_REMEDY)


def read_document(path: str, schema_name: str) -> Entry | None:
    """Return the one document of a file of the operator, None if it is empty.

    Raises:
        UsageError: it does not fit the schema.
        UnreadableError: it cannot be read.
    """
    from reconciler.adapters.nofollow import warn_of_other_writers
    from reconciler.assembly.inputs.files import read_start
    from reconciler.desired import policies
    from reconciler.source import schema
    from reconciler.source.objects import Entry

    warn_of_other_writers(path, _DECIDES[schema_name])
    content = read_start(path, LIMITS.bytes_max)
    documents, diagnostics = parse_documents(path, content)
    for diagnostic in diagnostics:
        where = str(diagnostic.place or path)
        raise UsageError(diagnostic.message, where=where, remedy=diagnostic.hint)
    if not documents:
        return None
    if len(documents) > 1:
        raise UsageError("must contain exactly one document", where=str(documents[1].place()))
    entry = Entry(documents[0], (), documents[0].data)
    for fault in schema.check_schema(schema_name, entry.pruned_data) or policies.check_policies(
        entry.pruned_data
    ):
        place = entry.place(fault.pointer, of_key=fault.of_key)
        name = field_path(fault.pointer)
        what = f"{name}: {fault.message}" if name else fault.message
        raise UsageError(what, where=str(place), remedy=fault.hint)
    return entry
