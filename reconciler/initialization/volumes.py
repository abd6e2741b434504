"""Volumes of an EC2NodeClass whose settings are placeholders without a value.

Few plans depend on them, but an EC2NodeClass with a text for a size has no plan at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from reconciler.desired.migration.objects import Note
from reconciler.desired.placeholders import fill
from reconciler.initialization.collection import Collection
from reconciler.model.diagnostics import Severity
from reconciler.model.json import JsonDict
from reconciler.model.text.counting import format_list
from reconciler.source.document import Pointer
from reconciler.source.schema import value_at

_MAPPINGS: Final = ("spec", "blockDeviceMappings")
_SIZE: Final = "volumeSize"
_FIELDS: Final = (_SIZE, "volumeType", "iops", "throughput")
_DEFAULT: Final = "20Gi"
"""The size of the volume that Karpenter gives a node of a class without any."""


def leave_out_open_volumes(found: Collection, known: dict[str, str]) -> None:
    """Leave out the settings of volumes that placeholders stand for, with a note on each volume.

    The size, which every volume needs, becomes the default one.
    """
    for item in found.of_kind("EC2NodeClass"):
        pointers = [placeholder.pointer for placeholder in fill(item.data, known).left]
        volumes: dict[Pointer, list[str]] = {}
        for pointer in pointers:
            if pointer[:2] == _MAPPINGS and pointer[-1] in _FIELDS:
                volumes.setdefault(pointer[:-1], []).append(str(pointer[-1]))
        for at, fields in volumes.items():
            for message in _messages(list(dict.fromkeys(fields))):
                found.note(item, Note(Severity.WARNING, at, message, "write what the cluster has"))
            item.change(partial(_complete_volume, at=at, fields=fields))


def _messages(fields: Sequence[str]) -> Iterator[str]:
    if _SIZE in fields:
        yield f"{_SIZE} is not known; assumed: {_DEFAULT}"
    others = [name for name in fields if name != _SIZE]
    if others:
        yield f"{format_list(others)} {'is' if len(others) == 1 else 'are'} not known; left out"


def _complete_volume(data: JsonDict, at: Pointer, fields: Sequence[str]) -> None:
    volume = value_at(data, at)
    if isinstance(volume, dict):
        for name in fields:
            volume.pop(name, None)
        if _SIZE in fields:
            volume[_SIZE] = _DEFAULT
