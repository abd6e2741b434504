"""Rendered manifests from files and from standard input, as ``-f`` and ``--from -`` name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

from reconciler.assembly.inputs.files import read_document
from reconciler.desired.fleet import SourceFile
from reconciler.desired.sources.unread import LeftOutObjects
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.errors import UnreadableError
from reconciler.model.json import JsonDict
from reconciler.source.document import LIMITS
from reconciler.source.resource import CONFIG_FILES, LOCK_FILE

STDIN: Final = "stdin"
_HEAD: Final = 4096
_BYTES_MAX: Final = 2**28
"""The maximum size of the JSON of Terraform; of manifests, that of a file of a fleet."""


def with_manifests(
    files: Sequence[SourceFile],
    refused: Sequence[Diagnostic],
    manifests: Sequence[str],
    *,
    is_instead: bool,
) -> tuple[list[SourceFile], list[Diagnostic]]:
    """Return the files of a folder with manifests beside them, or instead of them.

    Raises:
        UnreadableError: one cannot be read.
    """
    if not manifests:
        return list(files), list(refused)
    kept = [f for f in files if not is_instead or f.path in (*CONFIG_FILES, LOCK_FILE)]
    added, _ = shown_states(read_manifests(tuple(manifests)))
    return [*kept, *added], [] if is_instead else list(refused)


def leaving_objects(
    files: Iterable[SourceFile], manifests: Iterable[str] = ()
) -> LeftOutObjects | None:
    """Return what collects the objects with errors to leave out; None if each error is one.

    A ``reconciler.yaml`` declares that the folder is a fleet, and ``manifests`` are parts of it.
    """
    if any(file.path in CONFIG_FILES for file in files):
        return None
    return LeftOutObjects(frozenset(STDIN if place == "-" else place for place in manifests))


def shown_states(files: Sequence[SourceFile]) -> tuple[list[SourceFile], dict[str, str]]:
    """Return files with the output of `terraform show -json` replaced by the objects in it.

    The second part are settings by dotted key: the name and region of the cluster in it.

    Raises:
        UnreadableError: it has manifests whose content is not known before an apply.
    """
    found: list[SourceFile] = []
    settings: dict[str, str] = {}
    for file in files:
        if b'"terraform_version"' not in file.content[:_HEAD] or file.path in CONFIG_FILES:
            found.append(file)
            continue
        import msgspec

        from reconciler.desired.terraform.state import is_shown_state, read_shown_state
        from reconciler.model.decode import decode_json

        try:
            data = decode_json(file.content, JsonDict)
        except msgspec.MsgspecError:
            data = {}
        if not is_shown_state(data):
            found.append(file)
            continue
        state = read_shown_state(data)
        if state.unknown:
            raise UnreadableError(
                f"{state.unknown[0]} is known only after `terraform apply`",
                where=file.path,
                remedy="apply it, and pass the output of `terraform show -json` without a plan",
            )
        settings |= state.settings
        found += [
            SourceFile(f"{file.path}#{address}", text.encode())
            for address, text in state.texts.items()
        ]
    return found, settings


@cache
def read_manifests(places: tuple[str, ...]) -> tuple[SourceFile, ...]:
    """Return rendered manifests; they are read once, because standard input can be.

    Raises:
        UnreadableError: one cannot be read, is empty or too large.
    """
    found = []
    for place in places:
        content = read_document(place, _BYTES_MAX)
        name = STDIN if place == "-" else place
        if not content.strip():
            raise UnreadableError(
                "there is nothing to read", where=name, remedy="check the command that renders it"
            )
        if len(content) > LIMITS.bytes_max and not content.lstrip().startswith(b"{"):
            raise UnreadableError(f"more than {LIMITS.bytes_max >> 20} MiB", where=name)
        found.append(SourceFile(name, content))
    return tuple(found)
