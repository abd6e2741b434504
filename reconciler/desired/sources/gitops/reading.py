"""The renderings that an object of Flux or Argo CD asks for, by its kind."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final

from reconciler.desired.sources.gitops import argocd, flux
from reconciler.desired.sources.gitops.objects import GitopsObject, OtherObjects
from reconciler.desired.sources.requested import Found
from reconciler.desired.sources.work import MeteredTree
from reconciler.source.objects import Entry
from reconciler.source.resource import group_of

_FLUX: Final = "kustomize.toolkit.fluxcd.io"
_FLUX_HELM: Final = "helm.toolkit.fluxcd.io"
_ARGO: Final = "argoproj.io"
_READERS: Final = {
    (_FLUX, "Kustomization"): flux.read_kustomization,
    (_FLUX_HELM, "HelmRelease"): flux.read_release,
    (_ARGO, "Application"): argocd.read_application,
    (_ARGO, "ApplicationSet"): argocd.read_application_set,
}


def is_gitops(entry: Entry) -> bool:
    """Return whether an object asks for a rendering."""
    return (group_of(entry.api_version), entry.kind) in _READERS


def renderings_of(
    entry: Entry, tree: MeteredTree, folder: str, others: OtherObjects
) -> Iterator[Found]:
    """Yield the renderings that an object asks for; ``folder`` is the one that paths start at."""
    reader = _READERS.get((group_of(entry.api_version), entry.kind))
    if reader is not None:
        yield from reader(GitopsObject(entry, tree, folder, others))


def folders_above(folder: str) -> Iterator[str]:
    """Yield the folders that paths of Flux and Argo CD may start at: the top of the tree first."""
    yield "."
    here = folder
    while here not in (".", ""):
        yield here
        here = posixpath.dirname(here)
