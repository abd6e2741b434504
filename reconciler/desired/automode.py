"""The node classes of EKS Auto Mode in a fleet: AWS launches their nodes, so no plan has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from reconciler.model.diagnostics import Diagnostic, Severity
from reconciler.source.document import Pointer
from reconciler.source.objects import Entry
from reconciler.source.resource import AUTO_MODE, Resource
from reconciler.source.schema import value_at

CODE: Final = "auto-mode"
_LABEL: Final = "eks-label"
"""The finding on a label that only EKS sets."""
_GROUP: Final[Pointer] = ("spec", "template", "spec", "nodeClassRef", "group")
_NAMES_MAX: Final = 5


def unsupported_classes(
    classes: Sequence[Entry], node_pools: Sequence[tuple[Resource, Entry]]
) -> Iterator[Diagnostic]:
    """Yield one warning on the classes, with the NodePools that have no nodes because of them."""
    pools = [(r.name, e) for r, e in node_pools if value_at(r.data, _GROUP) == AUTO_MODE]
    first = classes[0] if classes else pools[0][1] if pools else None
    if first is None:
        return
    names = ", ".join(name for name, _ in pools[:_NAMES_MAX])
    more = f" and {len(pools) - _NAMES_MAX} more" if len(pools) > _NAMES_MAX else ""
    message = f"node classes of {AUTO_MODE} (EKS Auto Mode) are not supported"
    message += f"; NodePools without nodes in this plan: {names}{more}" if pools else ""
    hint = (
        "for nodes of Karpenter, write an EC2NodeClass, refer to it, and use labels of "
        "karpenter.k8s.aws; `reconciler init --from` does this"
    )
    yield Diagnostic(Severity.WARNING, CODE, message, first.place(()), hint=hint)


def without_selected_labels(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Return the findings without those on labels that pods select and EKS sets, if it has nodes.

    Without EKS Auto Mode nothing launches a node for such pods.
    """
    every = list(found)
    if not any(one.code == CODE for one in every):
        return every
    return [one for one in every if one.code != _LABEL or ".requirements[" in str(one.path)]
