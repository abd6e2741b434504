"""``reconciler hash``: the drift hashes of NodePools and EC2NodeClasses, as Karpenter has them."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from reconciler import exitcode
from reconciler.cli.parser import inputs
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.errors import InvalidFleetError, UnreadableError
from reconciler.options import add_options, argument, part, repeated
from reconciler.source.resource import CONFIG_FILES, schema_name

if TYPE_CHECKING:
    from reconciler.desired.fleet import SourceFile
    from reconciler.source.finding import Finding
    from reconciler.source.objects import Entry

_KINDS = ("EC2NodeClass", "NodePool")


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRequest:
    """The file or folder of objects, the settings of the command line, and the output format."""

    file: str = argument("FILE", "YAML or JSON file, folder of such files, or - for stdin")
    output: str = part(inputs.add_output)
    settings: tuple[str, ...] = repeated(
        "--set",
        "KEY=VALUE",
        "override a setting; clusterCABundle is part of an EC2NodeClass's hash",
    )


add_arguments = partial(add_options, HashRequest)
request_of = partial(inputs.request_from, HashRequest)


def run(request: HashRequest) -> int:
    """Print kind, name, hash and hash version of each object, in order of kind and name.

    Defaults are filled in as by the API server, so that the hash equals the one that Karpenter
    writes on the applied object. Other kinds are ignored.
    """
    from reconciler.desired.settings.layers import resolve

    bundle = resolve({}, os.environ, request.settings).settings.cluster_ca_bundle
    rows = sorted(
        (entry.kind, entry.name, *_hash_entry(entry, bundle))
        for file in _read_files(request.file)
        for entry in _read_entries(file)
        if entry.kind in _KINDS
    )
    if not rows:
        raise UnreadableError("contains no NodePool and no EC2NodeClass", where=request.file)
    from reconciler.inspection.replies import HashReply
    from reconciler.render.reply import list_section, render_reply

    reply = [HashReply(kind=kind, name=name, hash=h, version=v) for kind, name, h, v in rows]
    sections = [list_section("hashes", reply)]
    sys.stdout.write(
        render_reply(reply, sections, request.output, title="Drift hashes", sort_keys=False)
    )
    return exitcode.DONE


def _read_files(path: str) -> list[SourceFile]:
    from reconciler.assembly.inputs.files import read_start
    from reconciler.desired.fleet import SourceFile
    from reconciler.source.document import LIMITS

    if path == "-":
        return [SourceFile("stdin", read_start(path, LIMITS.bytes_max))]
    if os.path.isdir(path):
        from reconciler.adapters.git.folder import read_folder

        files, findings = read_folder(path)
        if findings:
            raise InvalidFleetError(findings)
        return files
    return [SourceFile(path, read_start(path, LIMITS.bytes_max))]


def _read_entries(file: SourceFile) -> list[Entry]:
    """Return the objects of one file.

    Raises:
        InvalidFleetError: it is not YAML, or contains an invalid object.
    """
    from reconciler.source.document import parse_documents
    from reconciler.source.objects import entries

    if os.path.basename(file.path) in CONFIG_FILES:
        return []
    documents, diagnostics = parse_documents(file.path, file.content)
    if diagnostics:
        raise InvalidFleetError(diagnostics)
    found = [pair for document in documents for pair in entries(document)]
    refused = next(((entry, finding) for entry, finding in found if finding is not None), None)
    if refused is not None:
        raise _invalid_entry_error(*refused)
    return [entry for entry, _ in found]


def _hash_entry(entry: Entry, bundle: str) -> tuple[str, str]:
    """Return hash and version of an object, which may be incomplete.

    Raises:
        InvalidFleetError: something in it has the wrong type, or cannot be read.
    """
    from reconciler.desired.hash import object_hash
    from reconciler.source.finding import Finding
    from reconciler.source.schema import check_schema

    faults = [
        f
        for f in check_schema(schema_name(entry.kind), entry.pruned_data)
        if f.code != "missing-field"
    ]
    for finding in faults:
        if finding.code == "wrong-type":
            raise _invalid_entry_error(entry, finding)
    try:
        found = object_hash(entry.pruned_data, bundle)
    except ValueError as error:
        fault = faults[0] if faults else Finding("bad-value", ("spec",), str(error))
        raise _invalid_entry_error(entry, fault) from error
    assert found is not None, entry.kind
    return found


def _invalid_entry_error(entry: Entry, finding: Finding) -> InvalidFleetError:
    from reconciler.source.finding import field_path

    place = entry.place(finding.pointer, of_key=finding.of_key)
    path = field_path(finding.pointer)
    diagnostic = Diagnostic(
        finding.severity, finding.code, finding.message, place, path, finding.hint
    )
    return InvalidFleetError([diagnostic])
