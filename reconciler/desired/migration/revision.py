"""The files of a revision with Karpenter's objects of older versions as those of ``v1``.

A pull request that migrates a fleet has a base of the former API. What it costs is the difference
to that base as it was meant, so the base is migrated as ``init`` migrates it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from reconciler.desired.fleet import SourceFile
from reconciler.desired.migration.nodeclass import migrate_node_class, node_class_of_provider
from reconciler.desired.migration.nodepool import migrate_node_pool, migrate_provisioner
from reconciler.model.json import JsonDict, as_mapping, as_text
from reconciler.source.objects import entries
from reconciler.source.schema import value_at

_POOLS: Final = ("NodePool", "Provisioner")
_CLASSES: Final = ("EC2NodeClass", "AWSNodeTemplate")
_WORDS: Final = tuple(kind.encode() for kind in (*_POOLS, *_CLASSES))
_GROUPS: Final = ("karpenter.sh/", "karpenter.k8s.aws/")
_REFERENCE: Final = ("spec", "template", "spec", "nodeClassRef")
_CURRENT: Final = ("karpenter.sh/v1", "karpenter.k8s.aws/v1")


class MigratedFiles(NamedTuple):
    """The files after the migration, and the versions that objects had before."""

    files: tuple[SourceFile, ...]
    versions: tuple[str, ...]


def migrate_files(files: Iterable[SourceFile]) -> MigratedFiles:
    """Return the files with objects of older versions as those of ``v1``."""
    kept: list[SourceFile] = []
    objects: list[tuple[str, list[JsonDict]]] = []
    for file in files:
        found = _objects_of(file)
        if found:
            objects.append((file.path, found))
        else:
            kept.append(file)
    every = [data for _, found in objects for data in found]
    versions = {as_text(data.get("apiVersion")) for data in every if _is_of_karpenter(data)}
    more = _migrate(every)
    made = [_file(path, found) for path, found in objects]
    if more:
        made.append(_file(".migrated.yaml", more))
    return MigratedFiles((*kept, *made), tuple(sorted(versions.difference(_CURRENT))))


def _objects_of(file: SourceFile) -> list[JsonDict]:
    """Return copies of the objects of a file, none if it has none of Karpenter's to migrate."""
    if not any(word in file.content for word in _WORDS):
        return []
    documents, findings = file.documents()
    items = [entry.pruned_data for document in documents for entry, _ in entries(document)]
    objects = [copy.deepcopy(as_mapping(item)) for item in items]
    return objects if not findings and any(map(_is_of_karpenter, objects)) else []


def _is_of_karpenter(data: JsonDict) -> bool:
    is_known = data.get("kind") in (*_POOLS, *_CLASSES)
    return is_known and as_text(data.get("apiVersion")).startswith(_GROUPS)


def _file(path: str, objects: Iterable[JsonDict]) -> SourceFile:
    from reconciler.source.plainyaml import dump

    return SourceFile(path, "---\n".join(dump(one, sort_keys=False) for one in objects).encode())


def _migrate(objects: Iterable[JsonDict]) -> list[JsonDict]:
    """Migrate objects in place, and return the classes that the migration adds."""
    known = [data for data in objects if _is_of_karpenter(data)]
    classes = {_name(data): data for data in known if data.get("kind") in _CLASSES}
    pools = [data for data in known if data.get("kind") in _POOLS]
    for data in classes.values():
        migrate_node_class(data)
    return list(_migrate_pools(pools, classes))


def _migrate_pools(pools: Iterable[JsonDict], classes: dict[str, JsonDict]) -> Iterator[JsonDict]:
    """Migrate NodePools in place, and yield their own classes and copies with their kubelet."""
    kubelets: dict[str, JsonDict | None] = {}
    for pool in pools:
        is_former = pool.get("kind") == "Provisioner"
        result = migrate_provisioner(pool) if is_former else migrate_node_pool(pool)
        reference = value_at(pool, _REFERENCE)
        if not isinstance(reference, dict):
            continue
        if result.provider is not None:
            name = _name(pool)
            while name in classes:
                name += "-provider"
            reference["name"] = name
            classes[name] = node_class_of_provider(name, result.provider, "")
            yield classes[name]
        name = as_text(reference.get("name"))
        if name not in classes:
            continue
        kubelet = result.kubelet
        if name in kubelets and kubelets[name] != kubelet:
            copied = copy.deepcopy(classes[name])
            copied["spec"].pop("kubelet", None)
            reference["name"] = copied["metadata"]["name"] = f"{name}-{_name(pool)}"
            yield _with_kubelet(copied, kubelet)
        elif name not in kubelets:
            kubelets[name] = kubelet
            _with_kubelet(classes[name], kubelet)


def _with_kubelet(data: JsonDict, kubelet: JsonDict | None) -> JsonDict:
    if kubelet:
        data["spec"].setdefault("kubelet", copy.deepcopy(kubelet))
    return data


def _name(data: JsonDict) -> str:
    return as_text(value_at(data, ("metadata", "name")))
