"""Compare a NodeClaim with the template that it was created from."""

from __future__ import annotations

from collections.abc import Iterator

from reconciler.diff.changes import FieldChange, dotted
from reconciler.model.duration import parse_nillable
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.taint import Taint


def template_fields(claim: NodeClaim, pool: NodePool) -> tuple[FieldChange, ...]:
    """Return the hashed fields of the pool's template that differ on the claim.

    A claim also has labels and annotations from other sources, so one that was removed from the
    template cannot be detected: the hash may differ although no field is named.
    """
    return tuple(FieldChange(p, old, new, drifts=True) for p, old, new in _differing(claim, pool))


def _differing(claim: NodeClaim, pool: NodePool) -> Iterator[tuple[str, object, object]]:
    template = pool.spec.template
    for kind in ("annotations", "labels"):
        have: dict[str, str] = getattr(claim.metadata, kind)
        want: dict[str, str] = getattr(template.metadata, kind)
        for key in sorted(want):
            if have.get(key) != want[key]:
                path = dotted(("spec", "template", "metadata", kind, key))
                yield path, have.get(key), want[key]
    spec = "spec.template.spec."
    made, wanted = claim.spec, template.spec
    if parse_nillable(made.expire_after) != parse_nillable(wanted.expire_after):
        yield f"{spec}expireAfter", made.expire_after, wanted.expire_after
    if made.node_class_ref != wanted.node_class_ref:
        yield f"{spec}nodeClassRef.name", made.node_class_ref.name, wanted.node_class_ref.name
    for field, old, new in (
        ("startupTaints", made.startup_taints, wanted.startup_taints),
        ("taints", made.taints, wanted.taints),
    ):
        if _texts(old) != _texts(new):
            yield spec + field, _texts(old), _texts(new)
    if claim.termination_grace_period != pool.termination_grace_period:
        yield (
            f"{spec}terminationGracePeriod",
            made.termination_grace_period,
            wanted.termination_grace_period,
        )


def _texts(taints: tuple[Taint, ...]) -> list[str]:
    return sorted(f"{t.key}={t.value}:{t.effect}" for t in taints)
