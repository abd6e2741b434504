"""Which NodeClaims are no longer what is wanted, why, and which side moved.

Karpenter's rules (``pkg/controllers/nodeclaim/disruption/drift.go`` and the AWS provider's
``drift.go``), decided from facts rather than from the condition that Karpenter recorded:

1. What can be computed is computed, in Karpenter's order: hash of the NodePool's template,
   requirements, instance type, then the node class.
2. A recorded ``Drifted`` condition counts where the facts are missing to compute its reason
   anew: a provider's reason without the class's status, or a hash of another version. A reason
   that can be computed and does not hold any more is cleared, as Karpenter would.
3. A claim that has not launched, is being deleted, or whose NodePool is gone never drifts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reconciler.diff.changes import FieldChange


class Side(StrEnum):
    """Who moved away from the state that was agreed before."""

    GIT = "git"
    WORLD = "world"
    US = "us"


@dataclass(frozen=True, slots=True)
class Drift:
    """A NodeClaim that is to be replaced, and why.

    The hashes are those of the object that the reason is about, None where it is not a hash that
    differs; ``fields`` are the fields of that object that are known to differ.
    """

    node_claim: str
    node: str | None
    node_pool: str
    reason: str
    recorded_hash: str | None = None
    desired_hash: str | None = None
    fields: tuple[FieldChange, ...] = ()
    side: Side = Side.GIT
